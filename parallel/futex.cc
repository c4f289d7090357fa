#include "parallel/futex.h"

#include <glog/logging.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

namespace shoal::parallel {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

void FutexWait(std::atomic<uint32_t>* word, uint32_t expected, absl::Duration timeout) {
  if (timeout <= absl::ZeroDuration()) return;
  const timespec limit = absl::ToTimespec(timeout);
  const long rc = syscall(SYS_futex, word, FUTEX_WAIT, expected, &limit, nullptr, 0);
  PCHECK(rc == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT) << "futex wait";
}

void FutexWake(std::atomic<uint32_t>* word) {
  PCHECK(syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0) >= 0) << "futex wake";
}

}  // namespace shoal::parallel
