#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace shoal::parallel {

// How the ranks of one worker group are laid out: `pp` pipeline stages of `tp` shards each.
//
//   rank = stage * tp + shard          tp = 2, pp = 3:   stage 0: 0 1   stage 1: 2 3   stage 2: 4 5
//
// A plain value; made by Create() from what a flag or a JoinGroup request says.
struct Topology {
  // Row-parallel sums have at most eight leaves (parallel/join_tree.h), so no shard beyond that
  // could own one.
  static constexpr int kMaxTensorParallel = 8;
  static constexpr int kMaxRanks = 1024;

  int tp = 1;  // tensor parallel size: shards of a stage
  int pp = 1;  // pipeline parallel size: stages

  // INVALID_ARGUMENT when a size is out of range; the message has the value and the limit.
  static absl::StatusOr<Topology> Create(int tp, int pp) {
    if (tp < 1 || tp > kMaxTensorParallel) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor parallel size ", tp, " is not in 1..", kMaxTensorParallel,
                       "; set --tensor-parallel-size to a value in that range"));
    }
    if (pp < 1 || pp > kMaxRanks / tp) {
      return absl::InvalidArgumentError(
          absl::StrCat("pipeline parallel size ", pp, " is not in 1..", kMaxRanks / tp,
                       "; set --pipeline-parallel-size to a value in that range"));
    }
    return Topology{tp, pp};
  }

  int world_size() const { return tp * pp; }
  int rank_of(int stage, int shard) const { return stage * tp + shard; }
  int stage_of(int rank) const { return rank / tp; }
  int shard_of(int rank) const { return rank % tp; }

  // The ranks of a stage are [first_rank, first_rank + tp): they meet in collectives.
  int first_rank(int stage) const { return stage * tp; }
  bool same_stage(int a, int b) const { return stage_of(a) == stage_of(b); }

  bool is_first_stage(int rank) const { return stage_of(rank) == 0; }
  bool is_last_stage(int rank) const { return stage_of(rank) == pp - 1; }

  bool operator==(const Topology&) const = default;
};

}  // namespace shoal::parallel
