#pragma once

#include <cstddef>
#include <cstdint>

// How weights lie in memory for the CPU's products. One layout for every instruction set and for
// every number of activation rows. Plain structs only: files compiled for one instruction set
// include this.
//
// A weight is cut into tiles of 16 outputs (rows of the weight; the last tile is padded with
// zeros). A tile holds all K columns of its outputs and starts at a multiple of 64 bytes.
//
//   quantised kinds:  | one record for each of K / 32 blocks | super-scales of K-quants |
//   record:           | codes | scales |   which a product reads from front to back
//
//   codes: vectors of 64 bytes whose byte 4j + b belongs to output j and columns 4g + b,
//     4 bits   256   vector g = 0..3: low nibble of column 4g + b, high nibble of 16 + 4g + b
//     5 bits   320   as 4 bits, and a fifth vector: bit g = bit 4 of column 4g + b, g = 0..7
//     6 bits   384   as 4 bits, and two vectors v: bits 2h + 1 .. 2h = bits 5..4 of column
//                    4 (4v + h) + b, h = 0..3
//     8 bits   512   vector g = 0..7: the code of column 4g + b
//   so that vpdpbusd of unpacked vector g with four broadcast activations adds four columns to each
//   of the 16 outputs.
//
//   scales of 16 outputs: d (f16) | d, m (f16) | sc, mn (8 bits each; Q4_K, Q5_K) |
//                         sc of columns 0..15, of 16..31 (8 bits, signed; Q6_K)
//   super-scales, for each 256 columns of the file that the tile touches: d, -dmin (f16) | d (f16)
//
//   float kinds:  | K x 16 values |   value [k][j] of column k, output j
//
// The meaning of d, sc, m and mn is that of quant/unpack.h.

namespace shoal::kernels::cpu {

inline constexpr int kTileRows = 16;

enum class WeightKind : int32_t {
  kQ4_0,
  kQ4_1,
  kQ4_K,
  kQ5_0,
  kQ5_1,
  kQ5_K,
  kQ6_K,
  kQ8_0,
  kF32,
  kF16,
  kBf16
};
inline constexpr int kNumWeightKinds = 11;

// What a PackedWeight* of the CPU backend points to.
struct CpuWeight {
  WeightKind kind{};
  int32_t zero = 0;               // quantised kinds
  int64_t rows = 0;               // outputs
  int64_t cols = 0;               // K
  int64_t num_tiles = 0;          // ceil(rows / 16)
  int64_t tile_bytes = 0;         // from tile to tile
  int64_t super_offset = 0;       // of the super-scales in a tile
  int32_t super_phase = 0;        // block b has those number (super_phase + b) / 8
  const uint8_t* data = nullptr;  // aligned to 64 bytes
};

// Products work on chunks of at most this many activation rows, whose operands are laid out anew in
// the thread's scratch (panels.inc.h); few enough for them to stay in the second-level cache.
inline constexpr int64_t kChunkRows = 64;

// Scratch per activation value of a chunk, rounded up: int8 q and f32 x, and four words a block.
inline constexpr int64_t kScratchBytesPerValue = 6;

}  // namespace shoal::kernels::cpu
