#pragma once

#include <cstdint>
#include <optional>

// The tensor types of GGUF files and the layouts of their blocks, as they lie on disk (little
// endian, no padding). A row of a tensor is a whole number of blocks; blocks never span rows.
// d, m and dmin are f16 (kernels/quant/float16.h). Layouts: ggml's block formats.
namespace shoal::kernels {

// The values are GGUF's type ids. Types that are missing here cannot be sized, so a file that holds
// them is refused.
enum class DType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kI8 = 24,  // integers and doubles are sized, but are no weights
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kBF16 = 30,
};

//  Q8_0, 32 values, 34 bytes                      value[k] = d * q[k]
//  | d 2 | q[0] .. q[31], signed 32 |
struct BlockQ8_0 {
  uint16_t d;
  int8_t q[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

//  Q4_0, 32 values, 18 bytes                      value[k] = d * (q[k] - 8)
//  | d 2 | qs 16 |
//  byte j of qs: low nibble q[j], high nibble q[j + 16]   (the same in Q4_1, Q5_0 and Q5_1)
struct BlockQ4_0 {
  uint16_t d;
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ4_0) == 18);

//  Q4_1, 32 values, 20 bytes                      value[k] = d * q[k] + m
//  | d 2 | m 2 | qs 16 |
struct BlockQ4_1 {
  uint16_t d;
  uint16_t m;
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

//  Q5_0, 32 values, 22 bytes                      value[k] = d * (q[k] - 16)
//  | d 2 | qh 4 | qs 16 |
//  bit k of qh (a little-endian u32) is bit 4 of q[k]     (the same in Q5_1)
struct BlockQ5_0 {
  uint16_t d;
  uint8_t qh[4];
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ5_0) == 22);

//  Q5_1, 32 values, 24 bytes                      value[k] = d * q[k] + m
//  | d 2 | m 2 | qh 4 | qs 16 |
struct BlockQ5_1 {
  uint16_t d;
  uint16_t m;
  uint8_t qh[4];
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ5_1) == 24);

//  Q4_K, 256 values in 8 sub-blocks of 32, 144 bytes
//  | d 2 | dmin 2 | scales 12 | qs 128 |          value = d * sc[s] * q - dmin * mn[s]
//  qs[32 i + l], i = 0..3: low nibble is value l of sub-block 2i, high nibble of sub-block 2i + 1
//
//  scales hold eight 6-bit pairs (sc, mn), see UnpackScales6():
//    byte     bits 7..6            bits 5..0
//    0..3     sc[4..7] bits 5..4   sc[0..3]
//    4..7     mn[4..7] bits 5..4   mn[0..3]
//    8..11    bits 7..4: mn[4..7] bits 3..0, bits 3..0: sc[4..7] bits 3..0
struct BlockQ4_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qs[128];
};
static_assert(sizeof(BlockQ4_K) == 144);

//  Q5_K, 256 values in 8 sub-blocks of 32, 176 bytes
//  | d 2 | dmin 2 | scales 12 | qh 32 | qs 128 |  as Q4_K
//  bit s of qh[l] is bit 4 of value l of sub-block s
struct BlockQ5_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
};
static_assert(sizeof(BlockQ5_K) == 176);

//  Q6_K, 256 values in 16 sub-blocks of 16, 210 bytes
//  | ql 128 | qh 64 | scales 16, signed | d 2 |   value = d * scales[k / 16] * (q - 32)
//  each half h = 0, 1 of 128 values uses ql[64 h ..], qh[32 h ..], for l = 0..31 and v = 0..3:
//    value 128 h + 32 v + l
//      bits 3..0: ql[64 h + 32 (v % 2) + l], low nibble if v < 2, else high nibble
//      bits 5..4: bits 2v + 1 .. 2v of qh[32 h + l]
struct BlockQ6_K {
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  uint16_t d;
};
static_assert(sizeof(BlockQ6_K) == 210);

// The eight (scale, minimum) pairs of a Q4_K or Q5_K block, each 0..63.
struct Scales6 {
  uint8_t scale[8];
  uint8_t min[8];
};
Scales6 UnpackScales6(const uint8_t packed[12]);

struct DTypeTraits {
  const char* name;      // as GGUF tools write it: "Q4_K"
  int values_per_block;  // 1 for plain types
  int bytes_per_block;
};
const DTypeTraits& TraitsOf(DType type);

// nullopt: an id that is unknown or that Shoal does not read.
std::optional<DType> DTypeFromGguf(uint32_t id);

// Block formats: everything but plain floats and integers.
bool IsQuantized(DType type);

// Whether DequantizeRow() takes the type, that is, whether it can be a weight.
bool IsWeightType(DType type);

// Bytes of one row. REQUIRES: cols >= 0 and a multiple of values_per_block; the result fits int64_t
// for every cols up to 2^59.
int64_t RowBytes(DType type, int64_t cols);

}  // namespace shoal::kernels
