#include "model/graph/builder.h"

#include <glog/logging.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace shoal::graph {
namespace {

WeightUse WholeMatrix(const model::WeightRef& ref) {
  return {.tensor = ref.name,
          .type = ref.type,
          .row_begin = 0,
          .row_end = ref.rows,
          .col_begin = 0,
          .col_end = ref.cols};
}

}  // namespace

Graph BuildGraph(const model::ModelConfig& config, const model::Weights& weights) {
  switch (config.architecture) {
    case model::Architecture::kLlama:
    case model::Architecture::kQwen2:
      return BuildLlama(config, weights);
    case model::Architecture::kQwen3:
      return BuildQwen3(config, weights);
  }
  LOG(FATAL) << "architecture without a builder";
}

Builder::Builder(const model::ModelConfig& config, const model::Weights& weights)
    : config_(config), weights_(weights) {
  graph_.architecture = std::string(model::ArchitectureName(config.architecture));
  graph_.num_layers = config.num_layers;
  graph_.num_kv_heads = config.num_kv_heads;
  graph_.head_dim = config.head_dim;
}

std::string Builder::TensorName(absl::string_view name) const {
  return layer_ < 0 ? std::string(name) : absl::StrCat("blk.", layer_, ".", name);
}

VectorInput Builder::Vector(absl::string_view name) const {
  const model::WeightRef& ref = weights_.Get(TensorName(name));
  VectorInput input;
  input.parts.push_back({.tensor = ref.name, .begin = 0, .end = ref.cols});
  return input;
}

ValueId Builder::Append(Op op, std::vector<ValueId> inputs, const Value& output,
                        size_t num_outputs) {
  const ValueId id = graph_.AddValue(output);
  Node node{.op = std::move(op), .inputs = std::move(inputs), .outputs = {id}, .layer = layer_};
  node.outputs.resize(num_outputs, kNoValue);
  graph_.nodes.push_back(std::move(node));
  return id;
}

ValueId Builder::Embed(absl::string_view table) {
  const model::WeightRef& ref = weights_.Get(TensorName(table));
  return Append(EmbedOp{.table = WholeMatrix(ref)}, {}, {.width = ref.cols});
}

ValueId Builder::RmsNorm(ValueId x, absl::string_view weight) {
  return Append(RmsNormOp{.weight = Vector(weight), .eps = config_.rms_eps}, {x}, graph_.value(x),
                2);
}

ValueId Builder::HeadNorm(ValueId x, absl::string_view weight, int64_t heads) {
  return Append(
      RmsNormOp{
          .weight = Vector(weight), .eps = config_.rms_eps, .per_head = true, .groups = heads},
      {x}, graph_.value(x), 2);
}

ValueId Builder::MatMul(ValueId x, Role role, absl::string_view weight, absl::string_view bias) {
  const model::WeightRef& ref = weights_.Get(TensorName(weight));
  MatMulOp op;
  op.roles = {role};
  op.segments = {WholeMatrix(ref)};
  if (!bias.empty()) {
    op.bias = Vector(bias);
  }
  return Append(std::move(op), {x, kNoValue}, {.rows = graph_.value(x).rows, .width = ref.rows});
}

ValueId Builder::Rope(ValueId x, int64_t heads) {
  RopeOp op{.heads = heads,
            .head_dim = config_.head_dim,
            .rope_dim = config_.rope.dim,
            .style = config_.rope.style,
            .base = config_.rope.base,
            .linear_factor = config_.rope.linear_factor};
  if (config_.rope.has_freq_factors) {
    op.freq_factors = "rope_freqs.weight";
  }
  return Append(std::move(op), {x}, graph_.value(x));
}

ValueId Builder::CausalAttention(ValueId q, ValueId k, ValueId v) {
  const ValueId kv =
      Append(KvStoreOp{.kv_heads = config_.num_kv_heads, .head_dim = config_.head_dim}, {k, v},
             {.form = Form::kKv});
  AttentionOp op{.head_dim = config_.head_dim,
                 .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim))};
  for (int64_t head = 0; head < config_.num_heads; ++head) {
    op.kv_head_of.push_back(
        static_cast<int32_t>(head / (config_.num_heads / config_.num_kv_heads)));
  }
  return Append(std::move(op), {q, kv}, {.width = config_.q_width()});
}

ValueId Builder::SwiGlu(ValueId gate, ValueId up) {
  return Append(SwiGluOp{}, {gate, up}, graph_.value(gate), 2);
}

ValueId Builder::Add(ValueId x, ValueId residual) {
  return Append(JoinAddOp{}, {x, residual}, graph_.value(residual), 3);
}

ValueId Builder::GatherOutputRows(ValueId x) {
  return Append(GatherRowsOp{}, {x}, {.rows = RowSet::kOutputs, .width = graph_.value(x).width});
}

Builder::Qkv Builder::ProjectQkv(ValueId x) {
  const bool bias = config_.qkv_bias;
  return {.q = MatMul(x, Role::kQuery, "attn_q.weight", bias ? "attn_q.bias" : ""),
          .k = MatMul(x, Role::kKey, "attn_k.weight", bias ? "attn_k.bias" : ""),
          .v = MatMul(x, Role::kValue, "attn_v.weight", bias ? "attn_v.bias" : "")};
}

ValueId Builder::GatedFeedForward(ValueId x) {
  const ValueId gate = MatMul(x, Role::kGate, "ffn_gate.weight");
  const ValueId up = MatMul(x, Role::kUp, "ffn_up.weight");
  return MatMul(SwiGlu(gate, up), Role::kDown, "ffn_down.weight");
}

Graph Builder::Finish(ValueId logits) {
  graph_.logits = logits;
  graph_.Validate();
  return std::move(graph_);
}

Graph BuildPreNormDecoder(const model::ModelConfig& config, const model::Weights& weights,
                          Block attention) {
  Builder b(config, weights);
  ValueId x = b.Embed("token_embd.weight");
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    b.set_layer(layer);
    x = b.Add(attention(b, b.RmsNorm(x, "attn_norm.weight")), x);
    x = b.Add(b.GatedFeedForward(b.RmsNorm(x, "ffn_norm.weight")), x);
  }
  b.set_layer(-1);
  x = b.RmsNorm(b.GatherOutputRows(x), "output_norm.weight");
  return b.Finish(
      b.MatMul(x, Role::kHead, config.tied_head ? "token_embd.weight" : "output.weight"));
}

}  // namespace shoal::graph
