#include "model/graph/builder.h"

namespace shoal::graph {
namespace {

ValueId Attention(Builder& b, ValueId x) {
  const int64_t heads = b.config().num_heads;
  const int64_t kv_heads = b.config().num_kv_heads;
  auto [q, k, v] = b.ProjectQkv(x);
  q = b.Rope(b.HeadNorm(q, "attn_q_norm.weight", heads), heads);
  k = b.Rope(b.HeadNorm(k, "attn_k_norm.weight", kv_heads), kv_heads);
  const ValueId attended = b.CausalAttention(q, k, v);
  return b.MatMul(attended, Role::kAttentionOut, "attn_output.weight");
}

}  // namespace

// Qwen 3: a norm for each head of q and k before the rotation, and a head size of its own.
// (Yang et al., Qwen3 Technical Report, 2025.)
Graph BuildQwen3(const model::ModelConfig& config, const model::Weights& weights) {
  return BuildPreNormDecoder(config, weights, Attention);
}

}  // namespace shoal::graph
