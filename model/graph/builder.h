#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/config.h"
#include "model/graph/graph.h"
#include "model/weights.h"

namespace shoal::graph {

// The model's forward pass for one device, as its architecture is defined: before any pass.
Graph BuildGraph(const model::ModelConfig& config, const model::Weights& weights);

// The vocabulary in which architectures are written down. Every function appends one node and
// returns its value; write one call a statement where the order of nodes matters (arguments are
// evaluated in any order). Tensors inside a layer are named without their prefix: "attn_q.weight".
class Builder {
 public:
  Builder(const model::ModelConfig& config, const model::Weights& weights);

  const model::ModelConfig& config() const { return config_; }

  // Tensor names and nodes that follow belong to this layer; -1: to none.
  void set_layer(int64_t layer) { layer_ = static_cast<int32_t>(layer); }

  ValueId Embed(absl::string_view table);
  ValueId RmsNorm(ValueId x, absl::string_view weight);
  ValueId HeadNorm(ValueId x, absl::string_view weight, int64_t heads);
  ValueId MatMul(ValueId x, Role role, absl::string_view weight, absl::string_view bias = "");
  ValueId Rope(ValueId x, int64_t heads);
  // Stores this step's keys and values and attends over the cache, heads grouped evenly.
  ValueId CausalAttention(ValueId q, ValueId k, ValueId v);
  ValueId SwiGlu(ValueId gate, ValueId up);
  ValueId Add(ValueId x, ValueId residual);
  ValueId GatherOutputRows(ValueId x);

  // Groups of nodes that architectures share.
  struct Qkv {
    ValueId q = kNoValue;
    ValueId k = kNoValue;
    ValueId v = kNoValue;
  };
  Qkv ProjectQkv(ValueId x);            // attn_{q,k,v}, with biases when the model has them
  ValueId GatedFeedForward(ValueId x);  // down(silu(gate(x)) * up(x))

  // The finished graph. Call last.
  Graph Finish(ValueId logits);

 private:
  std::string TensorName(absl::string_view name) const;
  VectorInput Vector(absl::string_view name) const;
  ValueId Append(Op op, std::vector<ValueId> inputs, const Value& output, size_t num_outputs = 1);

  const model::ModelConfig& config_;
  const model::Weights& weights_;
  int32_t layer_ = -1;
  Graph graph_;
};

// A decoder of pre-norm blocks, x += attention(norm(x)), x += GatedFeedForward(norm(x)), with a
// final norm and a head. `attention` writes one block down.
using Block = ValueId (*)(Builder& b, ValueId x);
Graph BuildPreNormDecoder(const model::ModelConfig& config, const model::Weights& weights,
                          Block attention);

// The architectures, one file each.
Graph BuildLlama(const model::ModelConfig& config, const model::Weights& weights);  // and Qwen 2
Graph BuildQwen3(const model::ModelConfig& config, const model::Weights& weights);

}  // namespace shoal::graph
