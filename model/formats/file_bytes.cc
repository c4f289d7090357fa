#include "model/formats/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace shoal::model {
namespace {

constexpr size_t kAlignment = 64;

absl::Status ErrnoStatus(absl::string_view path, absl::string_view action) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", action, " '", path, "'"));
}

absl::Status ReadAll(int fd, absl::string_view path, uint8_t* data, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(fd, data + done, size - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoStatus(path, "read");
    }
    if (n == 0) {
      return absl::DataLossError(absl::StrCat("'", path, "' shrank from ", size, " to ", done,
                                              " bytes while it was read"));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileBytes>> FileBytes::Open(absl::string_view path, Mode mode) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const base::UniqueFd fd(::open(std::string(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    return ErrnoStatus(path, "open");
  }
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) {
    return ErrnoStatus(path, "stat");
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is not a regular file"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (mode == Mode::kMap && size > 0) {
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) {
      return ErrnoStatus(path, "map");
    }
    return std::unique_ptr<FileBytes>(new FileBytes(static_cast<uint8_t*>(data), size, true));
  }
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<FileBytes> result, Allocate(size));
  SHOAL_RETURN_IF_ERROR(ReadAll(fd.get(), path, result->data_, size));
  return result;
}

absl::StatusOr<std::unique_ptr<FileBytes>> FileBytes::Copy(absl::Span<const uint8_t> bytes) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<FileBytes> result, Allocate(bytes.size()));
  if (!bytes.empty()) {
    std::memcpy(result->data_, bytes.data(), bytes.size());
  }
  return result;
}

absl::StatusOr<std::unique_ptr<FileBytes>> FileBytes::Allocate(size_t size) {
  const size_t rounded = (size / kAlignment + 1) * kAlignment;  // never zero bytes
  void* data = std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a file of ", size, " bytes; map it instead"));
  }
  return std::unique_ptr<FileBytes>(new FileBytes(static_cast<uint8_t*>(data), size, false));
}

FileBytes::~FileBytes() {
  if (mapped_) {
    ::munmap(data_, size_);
  } else {
    std::free(data_);
  }
}

}  // namespace shoal::model
