#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shoal::base {

// Of proto/shoal/worker/v1: a router works with ranks of the same version only. Raised with every
// change of those messages that an older side would misread.
inline constexpr uint32_t kProtocolVersion = 2;

// In the metadata of an Execute call: the name of the epoch that it is for. A rank knows from the
// beginning of the stream that the epoch's owner lives.
inline constexpr char kEpochKey[] = "shoal-epoch";

inline std::string EpochName(absl::string_view owner_id, uint64_t counter) {
  return absl::StrCat(owner_id, "/", counter);
}

}  // namespace shoal::base
