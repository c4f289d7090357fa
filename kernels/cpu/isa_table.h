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
inline constexpr int64_t kAttentionRecordExtra = 16;  // floats of a record beside its sums

// Query vectors of one sequence: rows [row_begin, row_end) times query heads [head_begin,
// head_end), at most kMaxAttentionVectors of them, all of one KV head unless there is one row; and
// the segments of positions (kAttentionSegment each) that are asked for.
//   records == nullptr: all of them; the result goes to args.out.
//   else: the partial result of segment s and vector v goes to records + (s * vectors + v) *
//   (head_dim rounded up to 16 + kAttentionRecordExtra), for join_attention.
struct AttentionItem {
  int32_t seq = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int32_t head_begin = 0;
  int32_t head_end = 0;
  int64_t segment_begin = 0;
  int64_t segment_end = 0;
  float* records = nullptr;  // aligned to 64 bytes
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
  // Joins the records of all of an item's segments, in order; the result goes to args.out.
  void (*join_attention)(const AttentionArgs& args, const AttentionItem& item, Scratch scratch);
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
namespace amx {  // the other ops are those of avx512
void MatMul(const MatMulArgs& args, int64_t tile_begin, int64_t tile_end, cpu::Scratch scratch);
}  // namespace amx
}  // namespace shoal::kernels
