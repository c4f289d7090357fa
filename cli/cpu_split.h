#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shoal::cli {

// "0-3,8" -> {0, 1, 2, 3, 8}. INVALID_ARGUMENT for anything else, a CPU twice, or one above 4095.
absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view text);

// How the compute threads of the ranks lie on the machine.
struct CpuSplit {
  int threads = 1;                     // of each rank
  std::vector<std::vector<int>> cpus;  // of each rank; disjoint; empty: not pinned
  bool oversubscribed = false;         // more compute threads than CPUs: waiting must not spin
};

// Splits `available` among `num_ranks` ranks, which may keep `num_usable` of them busy at a time
// (base/cpu_quota.h). `threads` 0 takes an even share of those.
//
// Ranks are pinned, to disjoint CPUs, when the caller chose the CPUs or when they fill them all.
// With CPUs to spare and no choice made they stay free: pins would put several clusters of one
// machine on the same first CPUs while others idle.
// REQUIRES: num_ranks >= 1, threads >= 0, `available` not empty, num_usable from 1 to their number.
CpuSplit SplitCpus(absl::Span<const int> available, int num_usable, bool chosen, int num_ranks,
                   int threads);

}  // namespace shoal::cli
