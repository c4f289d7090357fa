#include "model/weights.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "kernels/quant/dequantize.h"

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
  if (tensor->cols() != expected.cols || tensor->rows() != expected.rows) {
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

}  // namespace

std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config) {
  std::vector<ExpectedTensor> tensors;
  const auto add = [&](std::string name, int64_t rows, int64_t cols) {
    tensors.push_back({std::move(name), rows, cols});
  };
  add("token_embd.weight", config.vocab, config.hidden);
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
