#pragma once

#include <cstdint>

#include "kernels/quant/block_formats.h"

namespace shoal::kernels {

// Whether QuantizeRow() takes the type: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1. (K-quants
// need a search for their scales; Shoal only reads them.)
bool CanQuantize(DType type);

// Writes n floats as a row of `type`, round to nearest as ggml's reference quantisers do: the
// block's largest value (Q8_0: largest magnitude; Q4_1 and Q5_1: range) fixes the scale.
// REQUIRES: CanQuantize(type); src is finite; n a multiple of the block; dst holds
// RowBytes(type, n) bytes.
void QuantizeRow(DType type, const float* src, void* dst, int64_t n);

}  // namespace shoal::kernels
