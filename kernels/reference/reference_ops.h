#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

// Each op of kernels/ops.h as the loop one would write on paper, in double.
namespace shoal::kernels::reference {

// What a PackedWeight* of the reference backend points to.
struct ReferenceWeight {
  bool quantized = false;  // multiplies quantised activations
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values;  // [rows, cols], dequantised
};

void Embed(const EmbedArgs& args);
void RmsNorm(const RmsNormArgs& args);
void Quantize(const QuantizeArgs& args);
void MatMul(const MatMulArgs& args);
void JoinAdd(const JoinAddArgs& args);
void Rope(const RopeArgs& args);
void KvStore(const KvStoreArgs& args);
void Attention(const AttentionArgs& args);
void SwiGlu(const SwiGluArgs& args);
void GatherRows(const GatherRowsArgs& args);

}  // namespace shoal::kernels::reference
