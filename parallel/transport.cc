#include "parallel/transport.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>

namespace shoal::parallel {

absl::Status Transport::AllGather(const void* mine, size_t bytes, void* all) {
  CHECK_LE(size(), kMaxRanks);
  std::array<size_t, kMaxRanks> sizes;
  std::fill_n(sizes.begin(), size(), bytes);
  return AllGatherV(mine, absl::MakeConstSpan(sizes.data(), size()), all);
}

}  // namespace shoal::parallel
