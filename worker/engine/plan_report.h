#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/memory_plan.h"
#include "worker/engine/rank_model.h"

namespace shoal::worker {

// What the ranks of a model would take, before anything is loaded.
struct PlanReport {
  std::string model;                     // path
  int64_t memory_bytes = 0;              // that each rank may take; 0: unknown
  int64_t max_seq_len = 0;               // tokens
  std::vector<model::MemoryPlan> ranks;  // [rank]: shares may be uneven

  // Tokens whose KV the group holds, over all sequences: its smallest rank decides.
  int64_t context_tokens() const;
};

// Plans every rank: `options.tp` shards of `options.pp` stages. `device_bytes`: memory of each
// rank's own device; 0: the ranks share what this machine has available. Errors are
// RankModel::Load's, word for word; of one that does not fit they name the rank.
absl::StatusOr<PlanReport> PlanRanks(const std::string& path, RankModel::Options options,
                                     int64_t device_bytes);

std::string ToTable(const PlanReport& report);
std::string ToJson(const PlanReport& report);

}  // namespace shoal::worker
