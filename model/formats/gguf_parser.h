#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/quant/block_formats.h"

// What a GGUF file consists of, and the parser that checks it. Everything borrows from the file's
// bytes. Format: ggml docs/gguf.md, versions 2 and 3, little endian:
//
// clang-format off
//   | "GGUF" | u32 version | u64 num_tensors | u64 num_metadata |
//   num_metadata x | key | u32 type | value |
//   num_tensors  x | name | u32 num_dims | u64 dims[] | u32 type | u64 offset |
//   padding to general.alignment (default 32)
//   tensor data; offsets count from here and are multiples of the alignment
//
//   a string (key, name) is | u64 n | n bytes |
// clang-format on
namespace shoal::model {

enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

const char* GgufTypeName(GgufType type);

struct GgufMetadata {
  absl::string_view key;
  GgufType type = GgufType::kU8;
  GgufType element_type = GgufType::kU8;  // arrays
  uint64_t count = 1;                     // arrays: number of elements; strings: number of bytes
  absl::Span<const uint8_t> value;        // the elements as stored; a string without its length
};

struct TensorInfo {
  absl::string_view name;
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<int64_t> dims;  // dims[0] is contiguous: a weight [out, in] has dims {in, out}
  int64_t num_elements = 0;   // product of dims; 0 if one of them is 0
  uint64_t offset = 0;        // from the start of the file, in bytes
  uint64_t num_bytes = 0;

  int64_t cols() const { return dims[0]; }
  int64_t rows() const { return dims[0] == 0 ? 0 : num_elements / dims[0]; }
};

struct GgufLayout {
  uint32_t version = 0;
  uint64_t alignment = 32;  // a power of two >= 8
  std::vector<GgufMetadata> metadata;
  std::vector<TensorInfo> tensors;
  uint64_t data_start =
      0;  // from the start of the file; may lie past its end if no tensor has data
};

// Checks the whole of `file`, which is hostile: every length against what is left, all products for
// overflow, names for UTF-8 and duplicates, offsets for alignment, overlap and the end of the file.
// Memory is at most a small multiple of the header. Errors name the key or tensor: DATA_LOSS for a
// malformed or truncated file, UNIMPLEMENTED for a version or tensor type that is not read.
absl::StatusOr<GgufLayout> ParseGguf(absl::Span<const uint8_t> file);

// `text` for an error message: printable, and not longer than a line.
std::string Quoted(absl::string_view text);

}  // namespace shoal::model
