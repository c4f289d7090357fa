#include "model/formats/gguf_writer.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/quant/quantize.h"

namespace shoal::model {
namespace {

template <typename T>
absl::string_view AsBytes(absl::Span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

void PadTo(uint64_t alignment, std::string* out) {
  if (alignment != 0) {
    out->resize((out->size() + alignment - 1) / alignment * alignment);
  }
}

void AddScalar(GgufDocument* document, absl::string_view key, GgufType type, std::string value) {
  document->metadata.push_back({std::string(key), static_cast<uint32_t>(type), std::move(value)});
}

}  // namespace

std::string GgufStringBytes(absl::string_view value) {
  return absl::StrCat(GgufBytes<uint64_t>(value.size()), value);
}

void GgufDocument::AddU32(absl::string_view key, uint32_t value) {
  AddScalar(this, key, GgufType::kU32, GgufBytes(value));
}

void GgufDocument::AddU64(absl::string_view key, uint64_t value) {
  AddScalar(this, key, GgufType::kU64, GgufBytes(value));
}

void GgufDocument::AddI32(absl::string_view key, int32_t value) {
  AddScalar(this, key, GgufType::kI32, GgufBytes(value));
}

void GgufDocument::AddF32(absl::string_view key, float value) {
  AddScalar(this, key, GgufType::kF32, GgufBytes(value));
}

void GgufDocument::AddBool(absl::string_view key, bool value) {
  AddScalar(this, key, GgufType::kBool, GgufBytes<uint8_t>(value ? 1 : 0));
}

void GgufDocument::AddString(absl::string_view key, absl::string_view value) {
  AddScalar(this, key, GgufType::kString, GgufStringBytes(value));
}

void GgufDocument::AddRawArray(absl::string_view key, GgufType element_type, uint64_t count,
                               absl::string_view bytes) {
  AddScalar(this, key, GgufType::kArray,
            absl::StrCat(GgufBytes(static_cast<uint32_t>(element_type)), GgufBytes(count), bytes));
}

void GgufDocument::AddStringArray(absl::string_view key, absl::Span<const std::string> values) {
  std::string bytes;
  for (const std::string& value : values) {
    bytes += GgufStringBytes(value);
  }
  AddRawArray(key, GgufType::kString, values.size(), bytes);
}

void GgufDocument::AddF32Array(absl::string_view key, absl::Span<const float> values) {
  AddRawArray(key, GgufType::kF32, values.size(), AsBytes(values));
}

void GgufDocument::AddI32Array(absl::string_view key, absl::Span<const int32_t> values) {
  AddRawArray(key, GgufType::kI32, values.size(), AsBytes(values));
}

void GgufDocument::AddTensor(absl::string_view name, kernels::DType dtype,
                             absl::Span<const uint64_t> dims, absl::Span<const float> values) {
  CHECK(!dims.empty() && dims[0] > 0);
  CHECK_EQ(values.size() % dims[0], 0u);
  const int64_t cols = static_cast<int64_t>(dims[0]);
  const size_t row_bytes = static_cast<size_t>(kernels::RowBytes(dtype, cols));
  std::string bytes(values.size() / dims[0] * row_bytes, '\0');
  for (size_t row = 0; row < values.size() / dims[0]; ++row) {
    kernels::QuantizeRow(dtype, values.data() + row * dims[0], bytes.data() + row * row_bytes,
                         cols);
  }
  AddRawTensor(name, dtype, dims, bytes);
}

void GgufDocument::AddRawTensor(absl::string_view name, kernels::DType dtype,
                                absl::Span<const uint64_t> dims, absl::string_view bytes) {
  tensors.push_back({std::string(name), std::vector<uint64_t>(dims.begin(), dims.end()),
                     static_cast<uint32_t>(dtype), std::string(bytes)});
}

GgufDocument::Metadata* GgufDocument::Find(absl::string_view key) {
  const auto it = std::find_if(metadata.begin(), metadata.end(),
                               [key](const Metadata& entry) { return entry.key == key; });
  return it == metadata.end() ? nullptr : &*it;
}

std::string GgufDocument::Serialize() const {
  std::string data;
  std::string infos;
  for (const Tensor& tensor : tensors) {
    PadTo(alignment, &data);
    absl::StrAppend(
        &infos, GgufBytes<uint64_t>(tensor.name_length.value_or(tensor.name.size())), tensor.name,
        GgufBytes<uint32_t>(tensor.num_dims.value_or(static_cast<uint32_t>(tensor.dims.size()))));
    for (uint64_t dim : tensor.dims) {
      infos += GgufBytes(dim);
    }
    absl::StrAppend(&infos, GgufBytes(tensor.type),
                    GgufBytes<uint64_t>(tensor.offset.value_or(data.size())));
    data += tensor.data;
  }
  std::string file = absl::StrCat(magic, GgufBytes(version),
                                  GgufBytes<uint64_t>(num_tensors.value_or(tensors.size())),
                                  GgufBytes<uint64_t>(num_metadata.value_or(metadata.size())));
  for (const Metadata& entry : metadata) {
    absl::StrAppend(&file, GgufBytes<uint64_t>(entry.key_length.value_or(entry.key.size())),
                    entry.key, GgufBytes(entry.type), entry.value);
  }
  file += infos;
  if (!data.empty()) {
    PadTo(alignment, &file);
  }
  return file + data;
}

}  // namespace shoal::model
