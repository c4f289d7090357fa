#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/ops.h"
#include "model/formats/gguf.h"

namespace shoal::model {

enum class Architecture { kLlama, kQwen2, kQwen3 };

absl::string_view ArchitectureName(Architecture architecture);

// Rotary position embedding. Pair i of a head at position p turns by
//   p * base^(-2i / dim) / f[i],
// where f is 1, or the factor of linear scaling, or the file's tensor rope_freqs.weight
// (Llama 3.1).
struct RopeConfig {
  double base = 10000;
  int64_t dim = 0;  // even, <= head_dim
  kernels::RopeStyle style = kernels::RopeStyle::kAdjacent;
  float linear_factor = 1;
  bool has_freq_factors = false;
};

// A decoder of the llama family as its file describes it. Only ParseConfig() makes one from a file,
// so that whoever holds one may rely on: all sizes >= 1 and <= kMaxDimension, num_heads %
// num_kv_heads == 0, products of any two sizes fit int64_t.
struct ModelConfig {
  static constexpr int64_t kMaxDimension = int64_t{1} << 30;

  Architecture architecture = Architecture::kLlama;
  std::string name;  // general.name, or empty
  int64_t hidden = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;  // tokens; the rows of the embedding table may be padded to more
  int64_t context_length = 0;
  float rms_eps = 0;
  RopeConfig rope;
  bool tied_head = false;  // the head is token_embd.weight
  bool qkv_bias = false;   // attn_{q,k,v}.bias
  bool qk_norm = false;    // a norm for each head of q and k

  int64_t q_width() const { return num_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
};

// INVALID_ARGUMENT for a value that is missing, zero, too large or contradicts another;
// UNIMPLEMENTED for an architecture or a variant that is not served (experts, sliding windows, rope
// scalings other than linear, soft caps, heads that differ between layers). Messages have the
// file's key and the value.
absl::StatusOr<ModelConfig> ParseConfig(const GgufFile& file);

}  // namespace shoal::model
