#pragma once

#include <sys/resource.h>

#include <algorithm>

#include "glog/logging.h"

namespace shoal::base {

// Raises the soft limit of open files, which shells set for programs of another age, to the hard
// one, or to 65,536 if that is less.
inline void RaiseFileLimit() {
  constexpr rlim_t kMaxFiles = 1 << 16;
  rlimit limit = {};
  PCHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlim_t wanted = std::min(limit.rlim_max, kMaxFiles);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) PLOG(WARNING) << "cannot raise the open files limit";
}

}  // namespace shoal::base
