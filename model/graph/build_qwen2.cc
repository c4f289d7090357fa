#include "model/graph/builder.h"

namespace shoal::graph {
namespace {

ValueId Attention(Builder& b, ValueId x) {
  auto [q, k, v] = b.ProjectQkv(x);  // with biases
  q = b.Rope(q, b.config().num_heads);
  k = b.Rope(k, b.config().num_kv_heads);
  const ValueId attended = b.CausalAttention(q, k, v);
  return b.MatMul(attended, Role::kAttentionOut, "attn_output.weight");
}

ValueId FeedForward(Builder& b, ValueId x) { return b.GatedFeedForward(x); }

}  // namespace

// Qwen 2 and 2.5: Llama's blocks with biases on q, k and v, and rotary pairs in halves.
// (Yang et al., Qwen2 Technical Report, 2024.)
Graph BuildQwen2(const model::ModelConfig& config, const model::Weights& weights) {
  return BuildPreNormDecoder(config, weights, Attention, FeedForward);
}

}  // namespace shoal::graph
