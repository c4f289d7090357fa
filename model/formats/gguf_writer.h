#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/quant/block_formats.h"
#include "model/formats/gguf_parser.h"

namespace shoal::model {

// A GGUF file as a document that can be written: for tests and tools that need small models. The
// Add...() functions build a good file. All fields are open, and Serialize() writes whatever they
// say without a check, so that every malformed file is a good one with one edit:
//
//   GgufDocument document = TinyModel();
//   document.tensors[0].dims[0] = 0;
//   Parse(document.Serialize());
//
// Not thread-safe.
struct GgufDocument {
  struct Metadata {
    std::string key;
    uint32_t type = 0;                        // a GgufType
    std::string value;                        // as stored: with the length of a string in front
    std::optional<uint64_t> key_length = {};  // written instead of key.size()
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // dims[0] is contiguous
    uint32_t type = 0;           // a kernels::DType
    std::string data;
    std::optional<uint64_t> name_length = {};
    std::optional<uint32_t> num_dims = {};
    std::optional<uint64_t> offset = {};  // written instead of the place of `data`
  };

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;  // of data; not written as metadata by itself
  std::vector<Metadata> metadata;
  std::vector<Tensor> tensors;
  std::optional<uint64_t> num_metadata = {};
  std::optional<uint64_t> num_tensors = {};

  void AddU32(absl::string_view key, uint32_t value);
  void AddU64(absl::string_view key, uint64_t value);
  void AddI32(absl::string_view key, int32_t value);
  void AddF32(absl::string_view key, float value);
  void AddBool(absl::string_view key, bool value);
  void AddString(absl::string_view key, absl::string_view value);
  void AddStringArray(absl::string_view key, absl::Span<const std::string> values);
  void AddF32Array(absl::string_view key, absl::Span<const float> values);
  void AddI32Array(absl::string_view key, absl::Span<const int32_t> values);
  // An array whose header says `count` and whose elements are `bytes`.
  void AddRawArray(absl::string_view key, GgufType element_type, uint64_t count,
                   absl::string_view bytes);

  // `values`, row by row, stored as `dtype`. REQUIRES: CanQuantize(dtype); dims[0] is a multiple of
  // its block; values.size() is the product of dims.
  void AddTensor(absl::string_view name, kernels::DType dtype, absl::Span<const uint64_t> dims,
                 absl::Span<const float> values);
  void AddRawTensor(absl::string_view name, kernels::DType dtype, absl::Span<const uint64_t> dims,
                    absl::string_view bytes);

  // nullptr: not there.
  Metadata* Find(absl::string_view key);

  // The bytes of the file. It ends with the last byte of the last tensor.
  std::string Serialize() const;
};

// `value` as GGUF stores it: the bytes of a number, or a string with its length in front.
template <typename T>
std::string GgufBytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
std::string GgufStringBytes(absl::string_view value);

}  // namespace shoal::model
