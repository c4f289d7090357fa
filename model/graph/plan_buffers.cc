#include "model/graph/plan_buffers.h"

#include <algorithm>
#include <numeric>

namespace shoal::graph {
namespace {

constexpr int64_t kAlignment = 64;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool LiveTogether(const BufferRequest& a, const BufferRequest& b) {
  return a.first <= b.last && b.first <= a.last;
}

}  // namespace

BufferPlan PlanBuffers(const std::vector<BufferRequest>& requests) {
  std::vector<int> order(requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return requests[a].bytes > requests[b].bytes; });
  BufferPlan plan;
  plan.offsets.assign(requests.size(), 0);
  std::vector<int> placed;  // ascending by offset
  for (const int index : order) {
    const int64_t bytes = Aligned(requests[index].bytes);
    int64_t offset = 0;
    for (const int other : placed) {
      if (!LiveTogether(requests[index], requests[other])) {
        continue;
      }
      if (offset + bytes <= plan.offsets[other]) {
        break;
      }
      offset = std::max(offset, plan.offsets[other] + Aligned(requests[other].bytes));
    }
    plan.offsets[index] = offset;
    plan.bytes = std::max(plan.bytes, offset + bytes);
    const auto by_offset = [&](int a, int b) { return plan.offsets[a] < plan.offsets[b]; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), index, by_offset), index);
  }
  return plan;
}

}  // namespace shoal::graph
