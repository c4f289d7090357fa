#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "parallel/transport.h"

namespace shoal::parallel {

struct LocalOptions {
  int size = 1;  // ranks, at most Transport::kMaxRanks
  absl::Duration op_timeout = absl::Seconds(5);
  size_t slot_bytes = 256 << 10;  // of a piece; a multiple of 64
  bool allow_spin = false;        // true only when every rank's thread has a core to itself
};

// The transports of one group whose ranks are threads of this process, in rank order. Each may
// outlive the others. INVALID_ARGUMENT for impossible options.
absl::StatusOr<std::vector<std::unique_ptr<Transport>>> NewLocalTransports(
    const LocalOptions& options);

}  // namespace shoal::parallel
