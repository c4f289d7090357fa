#pragma once

#include <cstdint>

#include "kernels/quant/block_formats.h"

namespace shoal::kernels {

// 32 consecutive values of any block format, in the one shape that weight packing reads:
//
//   value[k] = (k < 16 ? d0 : d1) * (q[k] - zero) + m
//
//   format      q        zero   d0, d1                     m
//   Q8_0        0..255   128    d, d (q is stored q + 128) 0
//   Q4_0        0..15    8      d, d                       0
//   Q5_0        0..31    16     d, d                       0
//   Q6_K        0..63    32     d * sc of each half        0
//   Q4_1        0..15    0      d, d                       m
//   Q5_1        0..31    0      d, d                       m
//   Q4_K, Q5_K  0..15/31 0      d * sc, d * sc             -(dmin * mn)
//
// d0, d1 and m are exact: an f16 times at most 8 bits. So is d * (q - zero): a value is rounded
// once, in the sum with m.
struct Unpacked32 {
  uint8_t q[32];
  int32_t zero;
  float d0;
  float d1;
  float m;
};

// Unpacks n values of a stored row into n / 32 blocks. Equal to DequantizeRow(), value for value
// (a zero may differ in sign).
// REQUIRES: IsQuantized(type); n a multiple of the type's block; src holds RowBytes(type, n) bytes.
void UnpackRow(DType type, const void* src, Unpacked32* dst, int64_t n);

}  // namespace shoal::kernels
