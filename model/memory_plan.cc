#include "model/memory_plan.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/control_group.h"

namespace shoal::model {
namespace {

constexpr double kDefaultKvShare = 0.4;  // of a rank's memory

std::string Mib(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string Parts(const MemoryDemand& demand) {
  return absl::StrCat("weights ", Mib(demand.weight_bytes), ", constants ",
                      Mib(demand.constant_bytes), ", workspace ", Mib(demand.workspace_bytes));
}

// Of a line "KEY NUMBER" in one of the group's files; 0 if there is none.
int64_t ReadStat(const base::ControlGroup& group, absl::string_view file, absl::string_view key) {
  std::ifstream stream(absl::StrCat(group.path, "/", file));
  std::string name;
  int64_t value = 0;
  while (stream >> name >> value) {
    if (name == key) return value;
  }
  return 0;
}

// What one group has left; -1 if it has no limit. File pages that nobody uses are given back when
// memory is wanted: a model that was just read must not count as taken.
int64_t ReadGroupMemory(const base::ControlGroup& group) {
  int64_t max = 0, used = 0;
  if (!absl::SimpleAtoi(group.Read(group.is_v2 ? "memory.max" : "memory.limit_in_bytes"), &max) ||
      !absl::SimpleAtoi(group.Read(group.is_v2 ? "memory.current" : "memory.usage_in_bytes"),
                        &used)) {
    return -1;
  }
  const int64_t unused =
      ReadStat(group, "memory.stat", group.is_v2 ? "inactive_file" : "total_inactive_file");
  return std::max<int64_t>(max - std::max<int64_t>(used - unused, 0), 1);
}

int64_t ReadMemAvailable(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemAvailable:") {
      return kib * 1024;
    }
  }
  return 0;
}

}  // namespace

int64_t EstimatePackedBytes(kernels::DType type, int64_t rows, int64_t cols) {
  const int64_t padded = (rows + 15) / 16 * 16;
  if (!kernels::IsQuantized(type)) {
    return padded * kernels::RowBytes(type, cols);
  }
  // K-quants pad the last 256 columns of a slice, and Q4_K and Q5_K unpack the 6-bit scales.
  const kernels::DTypeTraits& traits = kernels::TraitsOf(type);
  const int64_t blocks = (cols + traits.values_per_block - 1) / traits.values_per_block;
  const bool wide_scales = type == kernels::DType::kQ4_K || type == kernels::DType::kQ5_K;
  return padded * blocks * (traits.bytes_per_block + (wide_scales ? 4 : 0));
}

absl::StatusOr<MemoryPlan> PlanMemory(const MemoryDemand& demand, const MemoryLimits& limits) {
  const int64_t fixed = demand.weight_bytes + demand.constant_bytes + demand.workspace_bytes;
  const int64_t share = limits.available_bytes > 0
                            ? limits.available_bytes / limits.ranks_on_machine
                            : std::numeric_limits<int64_t>::max();
  const std::string budget =
      absl::StrCat(Mib(share), " a rank (", Mib(limits.available_bytes),
                   " available on this machine for ", limits.ranks_on_machine, " ranks)");
  if (fixed > share) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the model needs ", Mib(fixed), " (", Parts(demand), ") but there are ", budget,
        "; use a smaller model, a stronger quantisation, more machines, or a "
        "lower --max-batch-tokens"));
  }
  MemoryPlan plan{.demand = demand};
  const int64_t blocks_per_seq =
      (limits.max_seq_len + demand.block_tokens - 1) / demand.block_tokens;
  if (limits.kv_cache_bytes > 0) {
    plan.num_blocks = limits.kv_cache_bytes / demand.bytes_per_block;
    if (plan.num_blocks < 1) {
      return absl::InvalidArgumentError(absl::StrCat("--kv-cache-bytes is ", limits.kv_cache_bytes,
                                                     "; one block of ", demand.block_tokens,
                                                     " tokens takes ", demand.bytes_per_block));
    }
  } else {
    const int64_t room =
        std::min(share - fixed, static_cast<int64_t>(static_cast<double>(share) * kDefaultKvShare));
    plan.num_blocks =
        std::min(limits.max_batch_seqs * blocks_per_seq, room / demand.bytes_per_block);
    if (plan.num_blocks < 1) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no KV block of ", Mib(demand.bytes_per_block), " fits beside ",
                       Parts(demand), " into ", budget, "; free memory or use a smaller model"));
    }
  }
  if (plan.kv_cache_bytes() > share - fixed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a KV cache of ", Mib(plan.kv_cache_bytes()), " does not fit beside ", Parts(demand),
        " into ", budget, "; lower --kv-cache-bytes to at most ", share - fixed));
  }
  // Page numbers are 32-bit.
  plan.num_blocks = std::min<int64_t>(plan.num_blocks, std::numeric_limits<int32_t>::max());
  return plan;
}

std::string ToText(const MemoryPlan& plan) {
  return absl::StrCat(Parts(plan.demand), ", KV cache ", Mib(plan.kv_cache_bytes()), " (",
                      plan.num_blocks, " blocks of ", plan.demand.bytes_per_block,
                      " bytes), total ", Mib(plan.total_bytes()));
}

int64_t ReadAvailableMemory(const std::string& root) {
  int64_t available = ReadMemAvailable(root);
  for (const base::ControlGroup& group : base::ControlGroupsOf("memory", root)) {
    const int64_t left = ReadGroupMemory(group);
    if (left > 0) available = available == 0 ? left : std::min(available, left);
  }
  return available;
}

}  // namespace shoal::model
