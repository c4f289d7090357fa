#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace shoal::parallel {

// Owns a mapping of zeroed or shared memory.
class Mapping {
 public:
  // fd -1: private to this process. Otherwise the first `bytes` of a memory file, shared.
  static absl::StatusOr<Mapping> Create(int fd, size_t bytes) {
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (data == MAP_FAILED) {
      return absl::ErrnoToStatus(errno,
                                 absl::StrCat("mapping ", bytes, " bytes of memory between ranks"));
    }
    return Mapping(data, bytes);
  }

  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  void* data() const { return data_; }

 private:
  Mapping(void* data, size_t bytes) : data_(data), bytes_(bytes) {}

  void* data_;
  size_t bytes_;
};

}  // namespace shoal::parallel
