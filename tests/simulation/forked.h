#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "tests/simulation/report.h"
#include "tests/simulation/scenario.h"

namespace shoal::simulation {

// Simulations in child processes: a CHECK of the code under test ends a process, and so does a
// loop that never ends. REQUIRES of all here: this process has one thread.

struct ForkedResult {
  static constexpr size_t kMaxLines = 60;

  bool ok = true;
  std::deque<std::string> lines;  // the last ones of the child's stderr
};

// Calls `run` in a child. Not ok: it returned false, the child died, or did not end in time.
ForkedResult RunForked(absl::Duration limit, const std::function<bool()>& run);

// Plays one scenario in a child, with its history.
ForkedResult PlayForked(const Scenario& scenario);

// Plays the seeds [first, first + count), divided among `num_processes`. Returns one that failed.
std::optional<uint64_t> FindFailure(uint64_t first, uint64_t count, int num_processes,
                                    Tally* tally);

}  // namespace shoal::simulation
