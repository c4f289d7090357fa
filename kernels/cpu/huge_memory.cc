#include "kernels/cpu/huge_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace shoal::kernels::cpu {
namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMaxBytes = size_t{1} << 46;
}  // namespace

HugeMemory::~HugeMemory() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapping_bytes_);
  }
}

HugeMemory::HugeMemory(HugeMemory&& other) noexcept { *this = std::move(other); }

HugeMemory& HugeMemory::operator=(HugeMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  return *this;
}

absl::StatusOr<HugeMemory> HugeMemory::Allocate(size_t bytes, absl::string_view what) {
  HugeMemory memory;
  memory.bytes_ = bytes;
  const bool huge = bytes >= kHugePage;
  void* mapping = MAP_FAILED;
  if (bytes <= kMaxBytes) {
    memory.mapping_bytes_ = (bytes == 0 ? 1 : bytes) + (huge ? kHugePage : 0);
    mapping = mmap(nullptr, memory.mapping_bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot get ", bytes, " bytes of memory for ", what));
  }
  memory.mapping_ = mapping;
  memory.data_ = mapping;
  if (huge) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(mapping);
    memory.data_ = reinterpret_cast<void*>((begin + kHugePage - 1) & ~(kHugePage - 1));
    madvise(memory.data_, bytes, MADV_HUGEPAGE);  // a wish: without it, it is only slower
  }
  return memory;
}

}  // namespace shoal::kernels::cpu
