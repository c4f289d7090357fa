#include "model/graph/plan_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace shoal::graph {
namespace {

bool Overlap(int64_t a_begin, int64_t a_end, int64_t b_begin, int64_t b_end) {
  return a_begin < b_end && b_begin < a_end;
}

TEST(PlanBuffersTest, BlocksThatFollowEachOtherShareMemory) {
  const BufferPlan plan = PlanBuffers({{640, 0, 1}, {640, 2, 3}, {640, 4, 5}});
  EXPECT_EQ(plan.bytes, 640);
  EXPECT_EQ(plan.offsets, (std::vector<int64_t>{0, 0, 0}));
}

TEST(PlanBuffersTest, ABlockReadByTheNodeThatWritesTheNextIsStillNeeded) {
  EXPECT_EQ(PlanBuffers({{64, 0, 1}, {64, 1, 2}}).bytes, 128);
}

TEST(PlanBuffersTest, FillsAGapBetweenLivingBlocks) {
  // 0 and 2 live throughout; 1 makes room for 3.
  const BufferPlan plan = PlanBuffers({{256, 0, 9}, {192, 0, 3}, {128, 0, 9}, {192, 4, 9}});
  EXPECT_EQ(plan.bytes, 256 + 192 + 128);
}

TEST(PlanBuffersTest, NothingThatLivesTogetherOverlaps) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<BufferRequest> requests(1 + random() % 40);
    int64_t together = 0;
    for (BufferRequest& request : requests) {
      request.bytes = static_cast<int64_t>(random() % 1000);
      request.first = static_cast<int>(random() % 20);
      request.last = request.first + static_cast<int>(random() % 6);
      together += (request.bytes + 63) / 64 * 64;
    }
    const BufferPlan plan = PlanBuffers(requests);
    EXPECT_LE(plan.bytes, together);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(plan.offsets[i] % 64, 0);
      EXPECT_LE(plan.offsets[i] + requests[i].bytes, plan.bytes);
      for (size_t j = 0; j < i; ++j) {
        const bool live =
            requests[i].first <= requests[j].last && requests[j].first <= requests[i].last;
        EXPECT_FALSE(live && Overlap(plan.offsets[i], plan.offsets[i] + requests[i].bytes,
                                     plan.offsets[j], plan.offsets[j] + requests[j].bytes))
            << "requests " << i << " and " << j << " of round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace shoal::graph
