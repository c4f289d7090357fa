#pragma once

#include <cstdint>

namespace shoal::base {

// Of proto/shoal/worker/v1: a router works with ranks of the same version only. Raised with every
// change of those messages that an older side would misread.
inline constexpr uint32_t kProtocolVersion = 2;

}  // namespace shoal::base
