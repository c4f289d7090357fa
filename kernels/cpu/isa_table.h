#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

// What one instruction set's build of the CPU kernels offers: plain functions on a slice of an op's
// work. The backend (cpu_backend.cc) cuts ops into slices; every slice may run on any thread, and
// how work is cut never changes a bit of the result.
//
// Like ops.h, this header goes into files compiled for one instruction set: plain structs only.

namespace shoal::kernels::cpu {

// Scratch of one thread. `bytes` is at least ScratchBytes() of every weight that was packed, and
// kAttentionScratchBytes.
struct Scratch {
  uint8_t* data = nullptr;  // aligned to 64 bytes
  int64_t bytes = 0;
};

inline constexpr int kMaxHeadDim = 512;
inline constexpr int kMaxAttentionVectors = 32;  // query vectors (row, head) of one attention item
inline constexpr int64_t kAttentionScratchBytes = 1 << 20;

// The query vectors that read one KV head of one sequence: rows [row_begin, row_end) times query
// heads [head_begin, head_end), at most kMaxAttentionVectors of them.
struct AttentionItem {
  int32_t seq = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int32_t head_begin = 0;
  int32_t head_end = 0;
};

struct IsaTable {
  const char* name;
  void (*rms_norm)(const RmsNormArgs& args, int64_t row_begin, int64_t row_end);
  void (*quantize)(const QuantizeArgs& args, int64_t row_begin, int64_t row_end);
  // Tiles (16 outputs each) are numbered through all segments in order.
  void (*mat_mul)(const MatMulArgs& args, int64_t tile_begin, int64_t tile_end, Scratch scratch);
  void (*join_add)(const JoinAddArgs& args, int64_t row_begin, int64_t row_end);
  void (*rope)(const RopeArgs& args, int64_t row_begin, int64_t row_end);
  void (*kv_store)(const KvStoreArgs& args, int64_t row_begin, int64_t row_end);
  void (*attention)(const AttentionArgs& args, const AttentionItem& item, Scratch scratch);
  // Columns in blocks of 32, numbered row by row.
  void (*swiglu)(const SwiGluArgs& args, int64_t block_begin, int64_t block_end);
};

}  // namespace shoal::kernels::cpu

namespace shoal::kernels {
namespace portable {
extern const cpu::IsaTable kTable;
void MatMul(const MatMulArgs& args, int64_t tile_begin, int64_t tile_end, cpu::Scratch scratch);
}  // namespace portable
namespace avx2 {
extern const cpu::IsaTable kTable;
void MatMul(const MatMulArgs& args, int64_t tile_begin, int64_t tile_end, cpu::Scratch scratch);
}  // namespace avx2
namespace avx512 {
extern const cpu::IsaTable kTable;
void MatMul(const MatMulArgs& args, int64_t tile_begin, int64_t tile_end, cpu::Scratch scratch);
}  // namespace avx512
}  // namespace shoal::kernels
