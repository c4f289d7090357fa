#include "model/graph/builder.h"

namespace shoal::graph {
namespace {

ValueId Attention(Builder& b, ValueId x) {
  auto [q, k, v] = b.ProjectQkv(x);
  q = b.Rope(q, b.config().num_heads);
  k = b.Rope(k, b.config().num_kv_heads);
  const ValueId attended = b.CausalAttention(q, k, v);
  return b.MatMul(attended, Role::kAttentionOut, "attn_output.weight");
}

ValueId FeedForward(Builder& b, ValueId x) { return b.GatedFeedForward(x); }

}  // namespace

// Llama, Mistral, SmolLM2: rotary positions, grouped query heads, SwiGLU.
// (Touvron et al., LLaMA: Open and Efficient Foundation Language Models, 2023.)
Graph BuildLlama(const model::ModelConfig& config, const model::Weights& weights) {
  return BuildPreNormDecoder(config, weights, Attention, FeedForward);
}

}  // namespace shoal::graph
