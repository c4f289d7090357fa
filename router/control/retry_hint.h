#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace shoal::router {

// A refusal that knows when it would be none; infinite: never. The gRPC edge makes
// google.rpc.RetryInfo of it (rpc_status.h); here nothing knows of gRPC.
inline constexpr char kRetryHint[] = "shoal/retry-after-ns";

inline absl::Status WithRetryHint(absl::Status status, absl::Duration delay) {
  status.SetPayload(kRetryHint, absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(delay))));
  return status;
}

inline std::optional<absl::Duration> RetryHint(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryHint);
  int64_t nanos = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &nanos)) return std::nullopt;
  return nanos == std::numeric_limits<int64_t>::max() ? absl::InfiniteDuration()
                                                      : absl::Nanoseconds(nanos);
}

}  // namespace shoal::router
