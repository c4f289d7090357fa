#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "glog/logging.h"

namespace shoal::parallel {

// Ends a wait of another thread: its descriptor becomes readable, and stays so. Any thread.
class CancelEvent {
 public:
  CancelEvent() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { PCHECK(fd_.valid()) << "eventfd"; }

  void Cancel() {
    const uint64_t one = 1;
    while (write(fd_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }
  int fd() const { return fd_.get(); }

 private:
  const base::UniqueFd fd_;
};

}  // namespace shoal::parallel
