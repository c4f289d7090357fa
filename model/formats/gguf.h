#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/formats/file_bytes.h"
#include "model/formats/gguf_parser.h"

namespace shoal::model {

// A GGUF model file (versions 2 and 3), checked as a whole when it is opened: afterwards every
// tensor lies inside the file. Owns the bytes; everything it returns borrows from it. Immutable;
// any thread.
//
// Look-ups fail with NOT_FOUND for a missing key and INVALID_ARGUMENT for one of another type or
// out of range; messages name the file and the key. The forms with `Or` take a fallback for a
// missing key, and still fail for a wrong one.
class GgufFile {
 public:
  // Errors: those of FileBytes::Open() and ParseGguf(); UNIMPLEMENTED for one part of a split file.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(absl::string_view path,
                                                        FileBytes::Mode mode);

  // Of a copy of `bytes`; `name` stands for the path in messages.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Parse(absl::Span<const uint8_t> bytes,
                                                         absl::string_view name);

  absl::string_view name() const { return name_; }  // the path
  uint64_t size() const { return file_->bytes().size(); }
  uint32_t version() const { return layout_.version; }

  absl::Span<const GgufMetadata> metadata() const { return layout_.metadata; }  // in file order
  bool Has(absl::string_view key) const { return FindMetadata(key) != nullptr; }
  const GgufMetadata* FindMetadata(absl::string_view key) const;  // nullptr: not there

  // Any integer type, if the value is not negative.
  absl::StatusOr<uint64_t> GetU64(absl::string_view key) const;
  absl::StatusOr<uint64_t> GetU64Or(absl::string_view key, uint64_t fallback) const;
  // F32, or F64 rounded. Must be finite.
  absl::StatusOr<float> GetF32(absl::string_view key) const;
  absl::StatusOr<float> GetF32Or(absl::string_view key, float fallback) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<bool> GetBoolOr(absl::string_view key, bool fallback) const;
  // Must be valid UTF-8.
  absl::StatusOr<absl::string_view> GetString(absl::string_view key) const;

  // Strings of any bytes.
  absl::StatusOr<std::vector<absl::string_view>> GetStringArray(absl::string_view key) const;
  absl::StatusOr<std::vector<float>> GetF32Array(absl::string_view key) const;
  // Elements of I32 or U32, each in the range of the result.
  absl::StatusOr<std::vector<int32_t>> GetI32Array(absl::string_view key) const;
  absl::StatusOr<std::vector<uint32_t>> GetU32Array(absl::string_view key) const;

  absl::Span<const TensorInfo> tensors() const { return layout_.tensors; }  // in file order
  const TensorInfo* FindTensor(absl::string_view name) const;               // nullptr: not there
  // A tensor that the model cannot do without. Errors: NOT_FOUND; INVALID_ARGUMENT for a zero
  // dimension or a type that is no weight.
  absl::StatusOr<const TensorInfo*> RequireTensor(absl::string_view name) const;

  // tensor.num_bytes bytes, aligned to 8 at least. REQUIRES: `tensor` belongs to this file.
  const void* data(const TensorInfo& tensor) const;

  // 64-bit FNV-1a over the size of the file, all of its header, and of each tensor three samples of
  // 64 bytes (begin, middle, end). Tells apart different models and versions, for ranks to compare;
  // it does not find a flipped bit in between, and is no defence against forgery.
  uint64_t Fingerprint() const;

 private:
  GgufFile(std::string name, std::unique_ptr<FileBytes> file, GgufLayout layout);
  static absl::StatusOr<std::unique_ptr<GgufFile>> Create(std::string name,
                                                          std::unique_ptr<FileBytes> file);

  absl::StatusOr<const GgufMetadata*> Require(absl::string_view key) const;
  absl::StatusOr<const GgufMetadata*> RequireArray(absl::string_view key) const;
  absl::Status WrongType(const GgufMetadata& entry, absl::string_view expected) const;
  template <typename T>
  absl::StatusOr<std::vector<T>> GetIntegerArray(absl::string_view key) const;

  const std::string name_;
  const std::unique_ptr<FileBytes> file_;
  const GgufLayout layout_;
  absl::flat_hash_map<absl::string_view, const GgufMetadata*> metadata_by_key_;
  absl::flat_hash_map<absl::string_view, const TensorInfo*> tensor_by_name_;
};

}  // namespace shoal::model
