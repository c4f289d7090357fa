#include "model/formats/gguf.h"

#include <glog/logging.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace shoal::model {
namespace {

constexpr uint64_t kFnvOffset = 14695981039346656037u;
constexpr uint64_t kFnvPrime = 1099511628211u;
constexpr uint64_t kSampleBytes = 64;

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

uint64_t Fnv1a(uint64_t hash, absl::Span<const uint8_t> bytes) {
  for (uint8_t byte : bytes) {
    hash = (hash ^ byte) * kFnvPrime;
  }
  return hash;
}

// The integer of a metadata entry: sign and magnitude. False: it is of another type.
struct Integer {
  bool negative = false;
  uint64_t value = 0;  // two's complement if negative
};

template <typename T>
Integer LoadInteger(const uint8_t* bytes) {
  const T value = Load<T>(bytes);
  if constexpr (std::is_signed_v<T>) {
    return {value < 0, static_cast<uint64_t>(static_cast<int64_t>(value))};
  } else {
    return {false, value};
  }
}

bool ReadInteger(const GgufMetadata& entry, Integer* result) {
  const uint8_t* bytes = entry.value.data();
  switch (entry.type) {
    case GgufType::kU8:
      *result = LoadInteger<uint8_t>(bytes);
      return true;
    case GgufType::kI8:
      *result = LoadInteger<int8_t>(bytes);
      return true;
    case GgufType::kU16:
      *result = LoadInteger<uint16_t>(bytes);
      return true;
    case GgufType::kI16:
      *result = LoadInteger<int16_t>(bytes);
      return true;
    case GgufType::kU32:
      *result = LoadInteger<uint32_t>(bytes);
      return true;
    case GgufType::kI32:
      *result = LoadInteger<int32_t>(bytes);
      return true;
    case GgufType::kU64:
      *result = LoadInteger<uint64_t>(bytes);
      return true;
    case GgufType::kI64:
      *result = LoadInteger<int64_t>(bytes);
      return true;
    default:
      return false;
  }
}

absl::Status WithName(absl::string_view name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(absl::string_view path,
                                                         FileBytes::Mode mode) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<FileBytes> file, FileBytes::Open(path, mode));
  return Create(std::string(path), std::move(file));
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(absl::Span<const uint8_t> bytes,
                                                          absl::string_view name) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<FileBytes> file, FileBytes::Copy(bytes));
  return Create(std::string(name), std::move(file));
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Create(std::string name,
                                                           std::unique_ptr<FileBytes> file) {
  absl::StatusOr<GgufLayout> layout = ParseGguf(file->bytes());
  if (!layout.ok()) {
    return WithName(name, layout.status());
  }
  std::unique_ptr<GgufFile> result(
      new GgufFile(std::move(name), std::move(file), *std::move(layout)));
  SHOAL_ASSIGN_OR_RETURN(const uint64_t parts, result->GetU64Or("split.count", 1));
  if (parts > 1) {
    return absl::UnimplementedError(
        absl::StrCat(result->name_, ": one of ", parts,
                     " parts of a split model; merge them with llama-gguf-split --merge"));
  }
  return result;
}

GgufFile::GgufFile(std::string name, std::unique_ptr<FileBytes> file, GgufLayout layout)
    : name_(std::move(name)), file_(std::move(file)), layout_(std::move(layout)) {
  for (const GgufMetadata& entry : layout_.metadata) {
    metadata_by_key_[entry.key] = &entry;
  }
  for (const TensorInfo& tensor : layout_.tensors) {
    tensor_by_name_[tensor.name] = &tensor;
  }
}

const GgufMetadata* GgufFile::FindMetadata(absl::string_view key) const {
  const auto it = metadata_by_key_.find(key);
  return it == metadata_by_key_.end() ? nullptr : it->second;
}

absl::StatusOr<const GgufMetadata*> GgufFile::Require(absl::string_view key) const {
  const GgufMetadata* entry = FindMetadata(key);
  if (entry == nullptr) {
    return absl::NotFoundError(absl::StrCat(name_, ": no metadata ", Quoted(key)));
  }
  return entry;
}

absl::StatusOr<const GgufMetadata*> GgufFile::RequireArray(absl::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const GgufMetadata* entry, Require(key));
  if (entry->type != GgufType::kArray) {
    return WrongType(*entry, "an array");
  }
  return entry;
}

absl::Status GgufFile::WrongType(const GgufMetadata& entry, absl::string_view expected) const {
  const std::string actual = entry.type == GgufType::kArray
                                 ? absl::StrCat("an array of ", GgufTypeName(entry.element_type))
                                 : GgufTypeName(entry.type);
  return absl::InvalidArgumentError(
      absl::StrCat(name_, ": metadata ", Quoted(entry.key), " is ", actual, ", not ", expected));
}

absl::StatusOr<uint64_t> GgufFile::GetU64(absl::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const GgufMetadata* entry, Require(key));
  Integer integer;
  if (!ReadInteger(*entry, &integer)) {
    return WrongType(*entry, "an integer");
  }
  if (integer.negative) {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": metadata ", Quoted(key), " is ",
                                                   static_cast<int64_t>(integer.value),
                                                   "; it must not be negative"));
  }
  return integer.value;
}

absl::StatusOr<uint64_t> GgufFile::GetU64Or(absl::string_view key, uint64_t fallback) const {
  if (!Has(key)) {
    return fallback;
  }
  return GetU64(key);
}

absl::StatusOr<float> GgufFile::GetF32(absl::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const GgufMetadata* entry, Require(key));
  double value;
  if (entry->type == GgufType::kF32) {
    value = static_cast<double>(Load<float>(entry->value.data()));
  } else if (entry->type == GgufType::kF64) {
    value = Load<double>(entry->value.data());
  } else {
    return WrongType(*entry, "a float");
  }
  if (!std::isfinite(value) || std::fabs(value) > std::numeric_limits<float>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": metadata ", Quoted(key), " is ", value,
                                                   "; it must be a finite float"));
  }
  return static_cast<float>(value);
}

absl::StatusOr<float> GgufFile::GetF32Or(absl::string_view key, float fallback) const {
  if (!Has(key)) {
    return fallback;
  }
  return GetF32(key);
}

absl::StatusOr<bool> GgufFile::GetBool(absl::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const GgufMetadata* entry, Require(key));
  if (entry->type != GgufType::kBool) {
    return WrongType(*entry, "BOOL");
  }
  return entry->value[0] != 0;
}

absl::StatusOr<bool> GgufFile::GetBoolOr(absl::string_view key, bool fallback) const {
  if (!Has(key)) {
    return fallback;
  }
  return GetBool(key);
}

absl::StatusOr<absl::string_view> GgufFile::GetString(absl::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const GgufMetadata* entry, Require(key));
  if (entry->type != GgufType::kString) {
    return WrongType(*entry, "STRING");
  }
  const absl::string_view text(reinterpret_cast<const char*>(entry->value.data()),
                               entry->value.size());
  if (!base::IsValidUtf8(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ": metadata ", Quoted(key), " is not valid UTF-8"));
  }
  return text;
}

absl::StatusOr<std::vector<absl::string_view>> GgufFile::GetStringArray(
    absl::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const GgufMetadata* entry, RequireArray(key));
  if (entry->element_type != GgufType::kString) {
    return WrongType(*entry, "an array of STRING");
  }
  std::vector<absl::string_view> result;
  result.reserve(entry->count);  // the parser has seen 8 bytes for each
  const uint8_t* bytes = entry->value.data();
  for (uint64_t i = 0; i < entry->count; ++i) {
    const uint64_t length = Load<uint64_t>(bytes);
    result.emplace_back(reinterpret_cast<const char*>(bytes + sizeof(length)), length);
    bytes += sizeof(length) + length;
  }
  return result;
}

absl::StatusOr<std::vector<float>> GgufFile::GetF32Array(absl::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const GgufMetadata* entry, RequireArray(key));
  if (entry->element_type != GgufType::kF32) {
    return WrongType(*entry, "an array of F32");
  }
  std::vector<float> result(entry->count);
  if (!result.empty()) {
    std::memcpy(result.data(), entry->value.data(), entry->count * sizeof(float));
  }
  return result;
}

template <typename T>
absl::StatusOr<std::vector<T>> GgufFile::GetIntegerArray(absl::string_view key) const {
  SHOAL_ASSIGN_OR_RETURN(const GgufMetadata* entry, RequireArray(key));
  if (entry->element_type != GgufType::kI32 && entry->element_type != GgufType::kU32) {
    return WrongType(*entry, "an array of I32 or U32");
  }
  std::vector<T> result(entry->count);
  for (uint64_t i = 0; i < entry->count; ++i) {
    const uint8_t* bytes = entry->value.data() + i * sizeof(uint32_t);
    const int64_t value = entry->element_type == GgufType::kI32 ? int64_t{Load<int32_t>(bytes)}
                                                                : int64_t{Load<uint32_t>(bytes)};
    if (value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(
          name_, ": metadata ", Quoted(key), ": element ", i, " is ", value, ", outside of ",
          std::numeric_limits<T>::min(), " to ", std::numeric_limits<T>::max()));
    }
    result[i] = static_cast<T>(value);
  }
  return result;
}

absl::StatusOr<std::vector<int32_t>> GgufFile::GetI32Array(absl::string_view key) const {
  return GetIntegerArray<int32_t>(key);
}

absl::StatusOr<std::vector<uint32_t>> GgufFile::GetU32Array(absl::string_view key) const {
  return GetIntegerArray<uint32_t>(key);
}

const TensorInfo* GgufFile::FindTensor(absl::string_view name) const {
  const auto it = tensor_by_name_.find(name);
  return it == tensor_by_name_.end() ? nullptr : it->second;
}

absl::StatusOr<const TensorInfo*> GgufFile::RequireTensor(absl::string_view name) const {
  const TensorInfo* tensor = FindTensor(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat(name_, ": no tensor ", Quoted(name)));
  }
  if (tensor->num_elements == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ": tensor ", Quoted(name), " has a dimension of 0"));
  }
  if (!kernels::IsWeightType(tensor->dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": tensor ", Quoted(name), " has type ",
                                                   kernels::TraitsOf(tensor->dtype).name,
                                                   ", which cannot be a weight"));
  }
  return tensor;
}

const void* GgufFile::data(const TensorInfo& tensor) const {
  CHECK_LE(tensor.num_bytes, size());
  return tensor.num_bytes == 0 ? file_->bytes().data() : file_->bytes().data() + tensor.offset;
}

uint64_t GgufFile::Fingerprint() const {
  const absl::Span<const uint8_t> bytes = file_->bytes();
  const uint64_t size = bytes.size();
  uint64_t hash = Fnv1a(kFnvOffset, {reinterpret_cast<const uint8_t*>(&size), sizeof(size)});
  hash = Fnv1a(hash, bytes.subspan(0, std::min(layout_.data_start, size)));
  for (const TensorInfo& tensor : layout_.tensors) {
    const uint64_t n = std::min(tensor.num_bytes, kSampleBytes);
    if (n == 0) {
      continue;
    }
    for (uint64_t begin : {uint64_t{0}, (tensor.num_bytes - n) / 2, tensor.num_bytes - n}) {
      hash = Fnv1a(hash, bytes.subspan(tensor.offset + begin, n));
    }
  }
  return hash;
}

}  // namespace shoal::model
