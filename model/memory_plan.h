#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/quant/block_formats.h"

namespace shoal::model {

// About what a backend needs for a packed matrix of rows x cols stored as `type` in the file: the
// file's bytes, with rows padded to 16. Within some percent of the truth.
int64_t EstimatePackedBytes(kernels::DType type, int64_t rows, int64_t cols);

// What one rank's part of a model takes. In bytes.
struct MemoryDemand {
  int64_t weight_bytes = 0;
  int64_t constant_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t bytes_per_block = 0;  // of the KV cache, all layers of the rank
  int64_t block_tokens = 0;
};

struct MemoryLimits {
  int64_t max_batch_seqs = 0;
  int64_t max_seq_len = 0;
  int64_t kv_cache_bytes = 0;    // 0: as many as max_batch_seqs full sequences take, if 40 % of the
                                 // rank's share of available memory has room for them
  int64_t available_bytes = 0;   // on this machine; 0: unknown, nothing is refused for lack of it
  int64_t ranks_on_machine = 1;  // that share it
};

struct MemoryPlan {
  MemoryDemand demand;
  int64_t num_blocks = 0;

  int64_t kv_cache_bytes() const { return num_blocks * demand.bytes_per_block; }
  int64_t total_bytes() const {
    return demand.weight_bytes + demand.constant_bytes + demand.workspace_bytes + kv_cache_bytes();
  }
};

// Decides, before anything is loaded, how many KV blocks a rank gets. RESOURCE_EXHAUSTED when the
// rank does not fit into its share of available memory, INVALID_ARGUMENT when kv_cache_bytes is
// less than one block; messages have the bytes of each part and what to change.
absl::StatusOr<MemoryPlan> PlanMemory(const MemoryDemand& demand, const MemoryLimits& limits);

std::string ToText(const MemoryPlan& plan);

// What this process could still take: /proc/meminfo's MemAvailable, or what its control groups
// leave, whichever is less. 0: unknown. `root` is where /proc and /sys are found.
int64_t ReadAvailableMemory(const std::string& root = "");

}  // namespace shoal::model
