#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shoal::cli {

// What a user calls a router, as gRPC wants it: "localhost" -> "localhost:8500", "::1" ->
// "[::1]:8500". unix:PATH and unix-abstract:NAME stay as they are. INVALID_ARGUMENT for what can be
// no address.
absl::StatusOr<std::string> ParseAddress(absl::string_view text, int default_port);

// Why the host of an address that nobody answered at has no number: "unknown host foo". Empty if it
// has one. May ask the network.
std::string WhyUnknownHost(const std::string& address);

}  // namespace shoal::cli
