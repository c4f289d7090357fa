#include "model/formats/gguf_parser.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace shoal::model {
namespace {

using kernels::DType;

constexpr uint64_t kMaxKeyBytes = 65535;      // GGUF's limit
constexpr uint64_t kMaxTensorNameBytes = 64;  // GGUF's limit
constexpr uint32_t kMaxDims = 4;              // GGUF's limit
constexpr int kMaxArrayDepth = 4;
// The least that an entry occupies, to refuse absurd counts before the first one is read.
constexpr uint64_t kMinMetadataBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// Bytes of a value of fixed size; 0 for strings, arrays and unknown types.
uint64_t FixedSize(uint32_t type) {
  switch (static_cast<GgufType>(type)) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    default:
      return 0;
  }
}

// Name of a tensor type that exists in ggml, for the message that refuses it.
std::string UnreadTypeName(uint32_t id) {
  switch (id) {
    case 9:
      return "Q8_1";
    case 10:
      return "Q2_K";
    case 11:
      return "Q3_K";
    case 15:
      return "Q8_K";
    case 20:
      return "IQ4_NL";
    case 23:
      return "IQ4_XS";
    case 34:
      return "TQ1_0";
    case 35:
      return "TQ2_0";
    case 39:
      return "MXFP4";
    case 40:
      return "NVFP4";
    default:
      return absl::StrCat("id ", id);
  }
}

// Reads from the front of the file; every read is checked.
class Cursor {
 public:
  explicit Cursor(absl::Span<const uint8_t> file) : file_(file) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return file_.size() - position_; }

  template <typename T>
  absl::Status Read(absl::string_view what, T* value) {
    SHOAL_RETURN_IF_ERROR(Require(what, sizeof(T)));
    std::memcpy(value, file_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return absl::OkStatus();
  }

  absl::Status ReadBytes(absl::string_view what, uint64_t n, absl::Span<const uint8_t>* bytes) {
    SHOAL_RETURN_IF_ERROR(Require(what, n));
    *bytes = file_.subspan(position_, n);
    position_ += n;
    return absl::OkStatus();
  }

  // A string with its length in front.
  absl::Status ReadString(absl::string_view what, absl::string_view* text) {
    uint64_t length;
    SHOAL_RETURN_IF_ERROR(Read(what, &length));
    absl::Span<const uint8_t> bytes;
    SHOAL_RETURN_IF_ERROR(ReadBytes(what, length, &bytes));
    *text = absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return absl::OkStatus();
  }

  // Fails if `count` items of at least `min_bytes` each cannot be in what is left.
  absl::Status RequireItems(absl::string_view what, uint64_t count, uint64_t min_bytes) const {
    if (count > left() / min_bytes) {
      return absl::DataLossError(absl::StrCat(what, ": ", count, " items of at least ", min_bytes,
                                              " bytes cannot be in the ", left(),
                                              " bytes left of the file"));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Require(absl::string_view what, uint64_t n) const {
    if (n > left()) {
      return absl::DataLossError(absl::StrCat(what, ": needs ", n, " bytes at offset ", position_,
                                              ", but the file ends after ", left(), " more"));
    }
    return absl::OkStatus();
  }

  absl::Span<const uint8_t> file_;
  uint64_t position_ = 0;
};

absl::Status CheckBools(absl::string_view what, absl::Span<const uint8_t> bytes) {
  for (uint8_t byte : bytes) {
    if (byte > 1) {
      return absl::DataLossError(absl::StrCat(what, ": a bool is 0 or 1, not ", byte));
    }
  }
  return absl::OkStatus();
}

// Walks over `count` array elements.
absl::Status SkipElements(Cursor& cursor, absl::string_view what, uint32_t type, uint64_t count,
                          int depth) {
  if (const uint64_t size = FixedSize(type); size != 0) {
    SHOAL_RETURN_IF_ERROR(cursor.RequireItems(what, count, size));
    absl::Span<const uint8_t> bytes;
    SHOAL_RETURN_IF_ERROR(cursor.ReadBytes(what, count * size, &bytes));
    return static_cast<GgufType>(type) == GgufType::kBool ? CheckBools(what, bytes)
                                                          : absl::OkStatus();
  }
  if (static_cast<GgufType>(type) == GgufType::kString) {
    SHOAL_RETURN_IF_ERROR(cursor.RequireItems(what, count, sizeof(uint64_t)));
    for (uint64_t i = 0; i < count; ++i) {
      absl::string_view text;
      SHOAL_RETURN_IF_ERROR(cursor.ReadString(what, &text));
    }
    return absl::OkStatus();
  }
  if (static_cast<GgufType>(type) != GgufType::kArray) {
    return absl::DataLossError(absl::StrCat(what, ": unknown array element type ", type));
  }
  if (depth >= kMaxArrayDepth) {
    return absl::DataLossError(
        absl::StrCat(what, ": arrays nest deeper than ", kMaxArrayDepth, " levels"));
  }
  SHOAL_RETURN_IF_ERROR(cursor.RequireItems(what, count, sizeof(uint32_t) + sizeof(uint64_t)));
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t inner_type;
    uint64_t inner_count;
    SHOAL_RETURN_IF_ERROR(cursor.Read(what, &inner_type));
    SHOAL_RETURN_IF_ERROR(cursor.Read(what, &inner_count));
    SHOAL_RETURN_IF_ERROR(SkipElements(cursor, what, inner_type, inner_count, depth + 1));
  }
  return absl::OkStatus();
}

absl::Status ParseValue(Cursor& cursor, absl::Span<const uint8_t> file, absl::string_view what,
                        GgufMetadata* entry) {
  uint32_t type;
  SHOAL_RETURN_IF_ERROR(cursor.Read(what, &type));
  entry->type = static_cast<GgufType>(type);
  if (const uint64_t size = FixedSize(type); size != 0) {
    SHOAL_RETURN_IF_ERROR(cursor.ReadBytes(what, size, &entry->value));
    return entry->type == GgufType::kBool ? CheckBools(what, entry->value) : absl::OkStatus();
  }
  if (entry->type == GgufType::kString) {
    SHOAL_RETURN_IF_ERROR(cursor.Read(what, &entry->count));
    return cursor.ReadBytes(what, entry->count, &entry->value);
  }
  if (entry->type != GgufType::kArray) {
    return absl::DataLossError(absl::StrCat(what, ": unknown value type ", type));
  }
  uint32_t element_type;
  SHOAL_RETURN_IF_ERROR(cursor.Read(what, &element_type));
  SHOAL_RETURN_IF_ERROR(cursor.Read(what, &entry->count));
  entry->element_type = static_cast<GgufType>(element_type);
  const uint64_t start = cursor.position();
  SHOAL_RETURN_IF_ERROR(SkipElements(cursor, what, element_type, entry->count, 1));
  entry->value = file.subspan(start, cursor.position() - start);
  return absl::OkStatus();
}

absl::Status CheckName(absl::string_view kind, absl::string_view name, uint64_t max_bytes) {
  if (name.empty()) {
    return absl::DataLossError(absl::StrCat("a ", kind, " is empty"));
  }
  if (name.size() > max_bytes) {
    return absl::DataLossError(absl::StrCat(kind, " ", Quoted(name), " has ", name.size(),
                                            " bytes; the limit is ", max_bytes));
  }
  if (!base::IsValidUtf8(name)) {
    return absl::DataLossError(absl::StrCat(kind, " ", Quoted(name), " is not valid UTF-8"));
  }
  return absl::OkStatus();
}

absl::Status ParseMetadata(Cursor& cursor, absl::Span<const uint8_t> file, uint64_t count,
                           GgufLayout* layout) {
  SHOAL_RETURN_IF_ERROR(
      cursor.RequireItems("number of metadata entries", count, kMinMetadataBytes));
  absl::flat_hash_set<absl::string_view> keys;
  for (uint64_t i = 0; i < count; ++i) {
    GgufMetadata entry;
    SHOAL_RETURN_IF_ERROR(cursor.ReadString(absl::StrCat("key ", i), &entry.key));
    SHOAL_RETURN_IF_ERROR(CheckName("metadata key", entry.key, kMaxKeyBytes));
    const std::string what = absl::StrCat("metadata ", Quoted(entry.key));
    if (!keys.insert(entry.key).second) {
      return absl::DataLossError(absl::StrCat(what, " occurs twice"));
    }
    SHOAL_RETURN_IF_ERROR(ParseValue(cursor, file, what, &entry));
    layout->metadata.push_back(entry);
  }
  return absl::OkStatus();
}

absl::Status ParseAlignment(GgufLayout* layout) {
  for (const GgufMetadata& entry : layout->metadata) {
    if (entry.key != "general.alignment") {
      continue;
    }
    if (entry.type != GgufType::kU32) {
      return absl::DataLossError(
          absl::StrCat("metadata 'general.alignment' must be U32, not ", GgufTypeName(entry.type)));
    }
    uint32_t alignment;
    std::memcpy(&alignment, entry.value.data(), sizeof(alignment));
    if (alignment < 8 || (alignment & (alignment - 1)) != 0) {
      return absl::DataLossError(absl::StrCat("metadata 'general.alignment' is ", alignment,
                                              "; it must be a power of two and at least 8"));
    }
    layout->alignment = alignment;
  }
  return absl::OkStatus();
}

// Sets num_elements and num_bytes from dims and dtype.
absl::Status ComputeSize(absl::string_view what, TensorInfo* tensor) {
  const kernels::DTypeTraits& traits = kernels::TraitsOf(tensor->dtype);
  if (tensor->cols() % traits.values_per_block != 0) {
    return absl::DataLossError(absl::StrCat(
        what, ": a row of ", tensor->cols(), " values is no multiple of the ",
        traits.values_per_block, " values of a ", traits.name,
        " block; quantise this tensor with a type of smaller blocks (Q8_0, Q5_0) or F16"));
  }
  // With a zero dimension the product of the others may still overflow, harmlessly: check it all.
  uint64_t elements = 1;
  bool empty = false;
  for (int64_t dim : tensor->dims) {
    empty = empty || dim == 0;
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(dim == 0 ? 1 : dim), &elements)) {
      return absl::DataLossError(absl::StrCat(what, ": the product of its dimensions overflows"));
    }
  }
  const uint64_t blocks = elements / static_cast<uint64_t>(traits.values_per_block);
  if (elements > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / 2 ||
      __builtin_mul_overflow(blocks, static_cast<uint64_t>(traits.bytes_per_block),
                             &tensor->num_bytes)) {
    return absl::DataLossError(absl::StrCat(what, ": its size in bytes overflows"));
  }
  tensor->num_elements = empty ? 0 : static_cast<int64_t>(elements);
  tensor->num_bytes = empty ? 0 : tensor->num_bytes;
  return absl::OkStatus();
}

absl::Status ParseTensor(Cursor& cursor, uint64_t index, uint64_t alignment, TensorInfo* tensor) {
  SHOAL_RETURN_IF_ERROR(cursor.ReadString(absl::StrCat("name of tensor ", index), &tensor->name));
  SHOAL_RETURN_IF_ERROR(CheckName("tensor name", tensor->name, kMaxTensorNameBytes));
  const std::string what = absl::StrCat("tensor ", Quoted(tensor->name));
  uint32_t num_dims;
  SHOAL_RETURN_IF_ERROR(cursor.Read(what, &num_dims));
  if (num_dims < 1 || num_dims > kMaxDims) {
    return absl::DataLossError(
        absl::StrCat(what, " has ", num_dims, " dimensions; 1 to ", kMaxDims, " are allowed"));
  }
  for (uint32_t i = 0; i < num_dims; ++i) {
    int64_t dim;
    SHOAL_RETURN_IF_ERROR(cursor.Read(what, &dim));
    if (dim < 0) {
      return absl::DataLossError(
          absl::StrCat(what, ": dimension ", i, " is ", static_cast<uint64_t>(dim)));
    }
    tensor->dims.push_back(dim);
  }
  uint32_t type;
  SHOAL_RETURN_IF_ERROR(cursor.Read(what, &type));
  const std::optional<DType> dtype = kernels::DTypeFromGguf(type);
  if (!dtype.has_value()) {
    return absl::UnimplementedError(absl::StrCat(
        what, " has type ", UnreadTypeName(type),
        ", which is not read; convert it to one of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
        "Q4_K, Q5_K, Q6_K"));
  }
  tensor->dtype = *dtype;
  SHOAL_RETURN_IF_ERROR(ComputeSize(what, tensor));
  SHOAL_RETURN_IF_ERROR(cursor.Read(what, &tensor->offset));
  if (tensor->offset % alignment != 0) {
    return absl::DataLossError(absl::StrCat(what, ": offset ", tensor->offset,
                                            " is no multiple of the alignment ", alignment));
  }
  return absl::OkStatus();
}

// Makes the offsets absolute. `data_start` < 2^63 + 2^32, so that only the sums below can overflow.
absl::Status PlaceTensors(uint64_t file_size, GgufLayout* layout) {
  for (TensorInfo& tensor : layout->tensors) {
    uint64_t begin, end;
    if (__builtin_add_overflow(layout->data_start, tensor.offset, &begin) ||
        __builtin_add_overflow(begin, tensor.num_bytes, &end)) {
      return absl::DataLossError(
          absl::StrCat("tensor ", Quoted(tensor.name), ": offset ", tensor.offset, " overflows"));
    }
    if (tensor.num_bytes > 0 && end > file_size) {
      return absl::DataLossError(absl::StrCat("tensor ", Quoted(tensor.name), " occupies bytes ",
                                              begin, " to ", end, ", but the file has only ",
                                              file_size, ": it is truncated; fetch it again"));
    }
    tensor.offset = begin;
  }
  std::vector<const TensorInfo*> sorted;
  for (const TensorInfo& tensor : layout->tensors) {
    if (tensor.num_bytes > 0) {
      sorted.push_back(&tensor);
    }
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->offset < sorted[i - 1]->offset + sorted[i - 1]->num_bytes) {
      return absl::DataLossError(absl::StrCat("tensors ", Quoted(sorted[i - 1]->name), " and ",
                                              Quoted(sorted[i]->name), " overlap"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseTensors(Cursor& cursor, uint64_t count, GgufLayout* layout) {
  SHOAL_RETURN_IF_ERROR(cursor.RequireItems("number of tensors", count, kMinTensorBytes));
  absl::flat_hash_set<absl::string_view> names;
  for (uint64_t i = 0; i < count; ++i) {
    TensorInfo tensor;
    SHOAL_RETURN_IF_ERROR(ParseTensor(cursor, i, layout->alignment, &tensor));
    if (!names.insert(tensor.name).second) {
      return absl::DataLossError(absl::StrCat("tensor ", Quoted(tensor.name), " occurs twice"));
    }
    layout->tensors.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

absl::Status CheckVersion(uint32_t version) {
  if (version == 2 || version == 3) {
    return absl::OkStatus();
  }
  if (__builtin_bswap32(version) == 2 || __builtin_bswap32(version) == 3) {
    return absl::UnimplementedError("the file is big endian; convert it to little endian");
  }
  return absl::UnimplementedError(
      absl::StrCat("GGUF version ", version, " is not read (2 and 3 are); convert the model anew"));
}

}  // namespace

const char* GgufTypeName(GgufType type) {
  static constexpr const char* kNames[] = {"U8",   "I8",     "U16",   "I16", "U32", "I32", "F32",
                                           "BOOL", "STRING", "ARRAY", "U64", "I64", "F64"};
  const uint32_t id = static_cast<uint32_t>(type);
  return id < std::size(kNames) ? kNames[id] : "unknown";
}

std::string Quoted(absl::string_view text) {
  constexpr size_t kMaxShown = 80;
  return absl::StrCat("'", absl::Utf8SafeCHexEscape(text.substr(0, kMaxShown)),
                      text.size() > kMaxShown ? "...'" : "'");
}

absl::StatusOr<GgufLayout> ParseGguf(absl::Span<const uint8_t> file) {
  Cursor cursor(file);
  char magic[4];
  SHOAL_RETURN_IF_ERROR(cursor.Read("magic", &magic));
  if (std::memcmp(magic, "GGUF", sizeof(magic)) != 0) {
    return absl::DataLossError(absl::StrCat("not a GGUF file: it begins with ",
                                            Quoted(absl::string_view(magic, sizeof(magic)))));
  }
  GgufLayout layout;
  uint64_t num_tensors, num_metadata;
  SHOAL_RETURN_IF_ERROR(cursor.Read("version", &layout.version));
  SHOAL_RETURN_IF_ERROR(CheckVersion(layout.version));
  SHOAL_RETURN_IF_ERROR(cursor.Read("number of tensors", &num_tensors));
  SHOAL_RETURN_IF_ERROR(cursor.Read("number of metadata entries", &num_metadata));
  // Both counts before anything is read on their behalf.
  SHOAL_RETURN_IF_ERROR(cursor.RequireItems("number of tensors", num_tensors, kMinTensorBytes));
  SHOAL_RETURN_IF_ERROR(ParseMetadata(cursor, file, num_metadata, &layout));
  SHOAL_RETURN_IF_ERROR(ParseAlignment(&layout));
  SHOAL_RETURN_IF_ERROR(ParseTensors(cursor, num_tensors, &layout));
  layout.data_start =
      (cursor.position() + layout.alignment - 1) / layout.alignment * layout.alignment;
  SHOAL_RETURN_IF_ERROR(PlaceTensors(file.size(), &layout));
  return layout;
}

}  // namespace shoal::model
