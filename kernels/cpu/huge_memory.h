#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shoal::kernels::cpu {

// Zeroed memory of its own mapping, aligned to 2 MiB when it is that large (and advised to lie in
// huge pages), else to a page. Movable; frees itself.
class HugeMemory {
 public:
  HugeMemory() = default;
  ~HugeMemory();
  HugeMemory(HugeMemory&& other) noexcept;
  HugeMemory& operator=(HugeMemory&& other) noexcept;

  // RESOURCE_EXHAUSTED naming `what` and the bytes.
  static absl::StatusOr<HugeMemory> Allocate(size_t bytes, absl::string_view what);

  void* data() const { return data_; }
  size_t size_bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
};

}  // namespace shoal::kernels::cpu
