#pragma once

#include <cstdint>

namespace shoal::base {

// Of proto/shoal/worker/v1: a router works with ranks of the same version only. Raised with every
// change of those messages that an older side would misread.
inline constexpr uint32_t kProtocolVersion = 2;

// In the metadata of an Execute call: the epoch that it is for, "OWNER/COUNTER". A rank knows from
// the beginning of the stream that the epoch's owner lives.
inline constexpr char kEpochKey[] = "shoal-epoch";

}  // namespace shoal::base
