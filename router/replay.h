#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace shoal::router {

struct ReplayResult {
  uint64_t num_records = 0;
  uint64_t num_plans = 0;
  uint64_t num_requests = 0;  // submissions
  bool is_truncated = false;  // the file ends in the middle of a record
  // Where this version decides otherwise than the recorded one did, with step and field; the replay
  // ends there. Empty: nowhere.
  std::string difference;
};

// Plays a recorded history through a GroupControl of this version. Errors: NOT_FOUND: no such file.
// INVALID_ARGUMENT: not a history, or of another format.
absl::StatusOr<ReplayResult> Replay(const std::string& path);

}  // namespace shoal::router
