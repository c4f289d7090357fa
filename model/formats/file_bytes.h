#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shoal::model {

// The bytes of a file, mapped or in memory. Immutable; any thread. data() is aligned to 64.
class FileBytes {
 public:
  enum class Mode {
    kMap,   // pages come on demand and are shared between ranks; a file that is truncated while it
            // is mapped kills the process by SIGBUS at the next touch of a lost page
    kRead,  // one private copy, independent of the file from then on
  };

  // Errors: NOT_FOUND, PERMISSION_DENIED; INVALID_ARGUMENT: not a regular file; RESOURCE_EXHAUSTED:
  // no memory; DATA_LOSS: the file shrank while it was read.
  static absl::StatusOr<std::unique_ptr<FileBytes>> Open(absl::string_view path, Mode mode);

  // A copy of `bytes`.
  static absl::StatusOr<std::unique_ptr<FileBytes>> Copy(absl::Span<const uint8_t> bytes);

  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  absl::Span<const uint8_t> bytes() const { return {data_, size_}; }

 private:
  FileBytes(uint8_t* data, size_t size, bool mapped) : data_(data), size_(size), mapped_(mapped) {}
  static absl::StatusOr<std::unique_ptr<FileBytes>> Allocate(size_t size);

  uint8_t* data_;
  size_t size_;
  bool mapped_;  // else from aligned_alloc
};

}  // namespace shoal::model
