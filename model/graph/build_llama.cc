#include "model/graph/builder.h"

namespace shoal::graph {
namespace {

ValueId Attention(Builder& b, ValueId x) {
  auto [q, k, v] = b.ProjectQkv(x);  // Qwen 2: with biases
  q = b.Rope(q, b.config().num_heads);
  k = b.Rope(k, b.config().num_kv_heads);
  const ValueId attended = b.CausalAttention(q, k, v);
  return b.MatMul(attended, Role::kAttentionOut, "attn_output.weight");
}

}  // namespace

// Llama, Mistral, SmolLM2: rotary positions, grouped query heads, SwiGLU.
// (Touvron et al., LLaMA: Open and Efficient Foundation Language Models, 2023.) Qwen 2 and 2.5
// differ by what the configuration says: biases, rotary pairs in halves. (Yang et al., Qwen2
// Technical Report, 2024.)
Graph BuildLlama(const model::ModelConfig& config, const model::Weights& weights) {
  return BuildPreNormDecoder(config, weights, Attention);
}

}  // namespace shoal::graph
