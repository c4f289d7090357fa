#pragma once

#include <cstdint>

#include "kernels/quant/block_formats.h"

namespace shoal::kernels {

// Turns n values of a stored row into floats, by the formulas drawn in block_formats.h, evaluated
// as one product and one sum in float. This is the plain twin of UnpackRow() and the meaning of
// every weight. Any thread; src needs only the alignment of its plain element (2 for blocks).
// REQUIRES: IsWeightType(type); n a multiple of the block; src holds RowBytes(type, n) bytes.
void DequantizeRow(DType type, const void* src, float* dst, int64_t n);

}  // namespace shoal::kernels
