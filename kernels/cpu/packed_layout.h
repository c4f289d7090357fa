#pragma once

#include <cstddef>
#include <cstdint>

// How weights lie in memory for the CPU's products. One layout for every instruction set and for
// every number of activation rows. Plain structs only: files compiled for one instruction set
// include this.
//
// A weight is cut into tiles of 16 outputs (rows of the weight; the last tile is padded with
// zeros). A tile holds all K columns of its outputs, in planes, each starting at a multiple of 64
// bytes:
//
//   quantised kinds, nb = K / 32 blocks:
//     | q: nb x (256 or 512) | d: nb x 16 scales (x 2 for kByteF32x2) | m: nb x 16 offsets |
//
//   q of one block, 4-bit kinds (256 bytes): four vectors g = 0..3 of 64 bytes
//     byte 4j + b of vector g:  low nibble q[output j][column 4g + b],
//                               high nibble q[output j][column 16 + 4g + b]
//   q of one block, 8-bit kinds (512 bytes): eight vectors g = 0..7 of 64 bytes
//     byte 4j + b of vector g:  q[output j][column 4g + b], unsigned
//   so that vpdpbusd of vector g with four broadcast activations adds four columns to each of the
//   16 outputs.
//
//   float kinds:  | K x 16 values |   value [k][j] of column k, output j
//
// value = d * (q - zero) + m, with d and m exactly as in the file (Unpacked32 in quant/unpack.h).

namespace shoal::kernels::cpu {

inline constexpr int kTileRows = 16;

enum class WeightKind : int32_t {
  kNibbleF16,     // Q4_0: d f16
  kNibbleF16F16,  // Q4_1: d, m f16
  kNibbleF32F32,  // Q4_K: d, m f32
  kByteF16,       // Q8_0, Q5_0: d f16
  kByteF16F16,    // Q5_1: d, m f16
  kByteF32F32,    // Q5_K: d, m f32
  kByteF32x2,     // Q6_K: two d f32, for columns 0..15 and 16..31 of a block
  kF32,
  kF16,
  kBf16,
};
inline constexpr int kNumWeightKinds = 10;

// What a PackedWeight* of the CPU backend points to.
struct CpuWeight {
  WeightKind kind{};
  int32_t zero = 0;        // quantised kinds
  int64_t rows = 0;        // outputs
  int64_t cols = 0;        // K
  int64_t num_tiles = 0;   // ceil(rows / 16)
  int64_t tile_bytes = 0;  // from tile to tile
  int64_t d_offset = 0;    // of the planes in a tile
  int64_t m_offset = 0;
  const uint8_t* data = nullptr;  // aligned to 64 bytes
};

// Products work on chunks of at most this many activation rows, whose operands are laid out anew in
// the thread's scratch (panels.inc.h); few enough for them to stay in the second-level cache.
inline constexpr int64_t kChunkRows = 64;

// Scratch per activation value of a chunk, rounded up: int8 q and f32 x, and four words a block.
inline constexpr int64_t kScratchBytesPerValue = 6;

}  // namespace shoal::kernels::cpu
