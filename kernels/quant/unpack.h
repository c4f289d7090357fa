#pragma once

#include <cstdint>

#include "kernels/quant/block_formats.h"

namespace shoal::kernels {

// 32 consecutive values of any block format, in the one shape that weight packing reads:
//
//   value[k] = (d * scale[k / 16]) * (q[k] - zero) + m * min
//
//   format      q        zero   d, scale               m, min
//   Q8_0        0..255   128    d, 1 (q is stored + 128) 0, 1
//   Q4_0        0..15    8      d, 1                   0, 1
//   Q5_0        0..31    16     d, 1                   0, 1
//   Q6_K        0..63    32     d, sc of each half     0, 1
//   Q4_1        0..15    0      d, 1                   m, 1
//   Q5_1        0..31    0      d, 1                   m, 1
//   Q4_K, Q5_K  0..15/31 0      d, sc                  -dmin, mn
//
// d and m are values of f16, scale and min have at most 8 bits; so d * scale and m * min are exact
// in float, and so is d * scale * (q - zero): a value is rounded once, in the sum.
struct Unpacked32 {
  uint8_t q[32];
  int32_t zero;
  float d;
  float m;
  int8_t scale[2];
  uint8_t min;
};

// Unpacks n values of a stored row into n / 32 blocks. Equal to DequantizeRow(), value for value
// (a zero may differ in sign).
// REQUIRES: IsQuantized(type); n a multiple of the type's block; src holds RowBytes(type, n) bytes.
void UnpackRow(DType type, const void* src, Unpacked32* dst, int64_t n);

}  // namespace shoal::kernels
