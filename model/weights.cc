#include "model/weights.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/float16.h"

namespace shoal::model {
namespace {

std::string ShapeOf(const TensorInfo& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.dims, ", "), "]");
}

// GGUF writes the contiguous dimension first.
std::string ShapeOf(const ExpectedTensor& expected) {
  return expected.rows == 1 ? absl::StrCat("[", expected.cols, "]")
                            : absl::StrCat("[", expected.cols, ", ", expected.rows, "]");
}

absl::StatusOr<WeightRef> Resolve(const GgufFile& file, const ExpectedTensor& expected) {
  SHOAL_ASSIGN_OR_RETURN(const TensorInfo* tensor, file.RequireTensor(expected.name));
  const bool is_padded = expected.may_be_padded && tensor->rows() > expected.rows;
  if (tensor->cols() != expected.cols || (tensor->rows() != expected.rows && !is_padded)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.name(), ": tensor ", expected.name, " has shape ", ShapeOf(*tensor),
                     "; expected ", ShapeOf(expected), " by the file's own configuration"));
  }
  if (expected.rows == 1 && kernels::IsQuantized(tensor->dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.name(), ": tensor ", expected.name, " has type ",
        kernels::TraitsOf(tensor->dtype).name, "; expected F32, F16 or BF16 for a vector"));
  }
  return WeightRef{.name = expected.name,
                   .type = tensor->dtype,
                   .rows = expected.rows,
                   .cols = expected.cols,
                   .row_bytes = kernels::RowBytes(tensor->dtype, expected.cols),
                   .data = file.data(*tensor)};
}

bool IsFiniteF16(uint16_t half) { return (half & 0x7c00) != 0x7c00; }
bool IsFiniteBF16(uint16_t brain) { return std::isfinite(kernels::BF16ToF32(brain)); }
bool IsFiniteF32(float value) { return std::isfinite(value); }

// A block's quants are small integers, so it is finite if its f16 scales are.
template <typename Block>
bool IsFiniteBlock(const Block& block) {
  if constexpr (requires { block.dmin; }) {
    return IsFiniteF16(block.d) && IsFiniteF16(block.dmin);
  } else if constexpr (requires { block.m; }) {
    return IsFiniteF16(block.d) && IsFiniteF16(block.m);
  } else {
    return IsFiniteF16(block.d);
  }
}

template <typename T>
bool AllOf(const void* row, int64_t count, bool (*is_finite)(T)) {
  const T* values = static_cast<const T*>(row);
  return std::all_of(values, values + count, is_finite);
}

template <typename Block>
bool AllBlocks(const void* row, int64_t row_bytes) {
  const Block* blocks = static_cast<const Block*>(row);
  return std::all_of(blocks, blocks + row_bytes / sizeof(Block), IsFiniteBlock<Block>);
}

bool IsFiniteRow(const WeightRef& ref, const void* row) {
  using kernels::DType;
  switch (ref.type) {
    case DType::kF32:
      return AllOf<float>(row, ref.cols, IsFiniteF32);
    case DType::kF16:
      return AllOf<uint16_t>(row, ref.cols, IsFiniteF16);
    case DType::kBF16:
      return AllOf<uint16_t>(row, ref.cols, IsFiniteBF16);
    case DType::kQ8_0:
      return AllBlocks<kernels::BlockQ8_0>(row, ref.row_bytes);
    case DType::kQ4_0:
      return AllBlocks<kernels::BlockQ4_0>(row, ref.row_bytes);
    case DType::kQ4_1:
      return AllBlocks<kernels::BlockQ4_1>(row, ref.row_bytes);
    case DType::kQ5_0:
      return AllBlocks<kernels::BlockQ5_0>(row, ref.row_bytes);
    case DType::kQ5_1:
      return AllBlocks<kernels::BlockQ5_1>(row, ref.row_bytes);
    case DType::kQ4_K:
      return AllBlocks<kernels::BlockQ4_K>(row, ref.row_bytes);
    case DType::kQ5_K:
      return AllBlocks<kernels::BlockQ5_K>(row, ref.row_bytes);
    case DType::kQ6_K:
      return AllBlocks<kernels::BlockQ6_K>(row, ref.row_bytes);
    default:
      LOG(FATAL) << kernels::TraitsOf(ref.type).name << " is no weight type";
  }
}

}  // namespace

absl::Status CheckFinite(const WeightRef& ref, int64_t row_begin, int64_t row_end) {
  CHECK(0 <= row_begin && row_begin <= row_end && row_end <= ref.rows) << ref.name;
  for (int64_t row = row_begin; row < row_end; ++row) {
    if (!IsFiniteRow(ref, static_cast<const char*>(ref.data) + row * ref.row_bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", ref.name, ", row ", row,
                       ": a value is no finite number; the file is damaged: fetch it again"));
    }
  }
  return absl::OkStatus();
}

std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config) {
  std::vector<ExpectedTensor> tensors;
  const auto add = [&](std::string name, int64_t rows, int64_t cols) {
    tensors.push_back({std::move(name), rows, cols});
  };
  add("token_embd.weight", config.vocab, config.hidden);
  tensors.back().may_be_padded = true;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    add(prefix + "attn_norm.weight", 1, config.hidden);
    add(prefix + "attn_q.weight", config.q_width(), config.hidden);
    add(prefix + "attn_k.weight", config.kv_width(), config.hidden);
    add(prefix + "attn_v.weight", config.kv_width(), config.hidden);
    if (config.qkv_bias) {
      add(prefix + "attn_q.bias", 1, config.q_width());
      add(prefix + "attn_k.bias", 1, config.kv_width());
      add(prefix + "attn_v.bias", 1, config.kv_width());
    }
    if (config.qk_norm) {
      add(prefix + "attn_q_norm.weight", 1, config.head_dim);
      add(prefix + "attn_k_norm.weight", 1, config.head_dim);
    }
    add(prefix + "attn_output.weight", config.hidden, config.q_width());
    add(prefix + "ffn_norm.weight", 1, config.hidden);
    add(prefix + "ffn_gate.weight", config.ffn, config.hidden);
    add(prefix + "ffn_up.weight", config.ffn, config.hidden);
    add(prefix + "ffn_down.weight", config.hidden, config.ffn);
  }
  add("output_norm.weight", 1, config.hidden);
  if (!config.tied_head) {
    add("output.weight", config.vocab, config.hidden);
    tensors.back().may_be_padded = true;
  }
  if (config.rope.has_freq_factors) {
    add("rope_freqs.weight", 1, config.rope.dim / 2);
  }
  return tensors;
}

absl::StatusOr<Weights> Weights::Create(const GgufFile& file, const ModelConfig& config) {
  Weights weights;
  for (const ExpectedTensor& expected : ExpectedTensors(config)) {
    SHOAL_ASSIGN_OR_RETURN(WeightRef ref, Resolve(file, expected));
    weights.by_name_.emplace(expected.name, std::move(ref));
  }
  for (const TensorInfo& tensor : file.tensors()) {
    if (weights.Find(tensor.name) == nullptr) {
      return absl::UnimplementedError(absl::StrCat(
          file.name(), ": tensor ", Quoted(tensor.name), " has no place in architecture ",
          ArchitectureName(config.architecture), " with this configuration"));
    }
  }
  return weights;
}

const WeightRef* Weights::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &it->second;
}

const WeightRef& Weights::Get(absl::string_view name) const {
  const WeightRef* ref = Find(name);
  CHECK(ref != nullptr) << "no tensor " << name;
  return *ref;
}

std::vector<float> Weights::Vector(absl::string_view name) const {
  const WeightRef& ref = Get(name);
  CHECK_EQ(ref.rows, 1) << name << " is no vector";
  std::vector<float> values(ref.cols);
  kernels::DequantizeRow(ref.type, ref.data, values.data(), ref.cols);
  return values;
}

}  // namespace shoal::model
