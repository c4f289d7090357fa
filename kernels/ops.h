#pragma once

#include <cstddef>
#include <cstdint>

// The op table: one args struct and one contract per op, shared by every backend.
//
// This header is included by files that are compiled for one instruction set only, so it holds
// plain structs and no inline code (the linker could pick a copy that older machines cannot run).
//
// Common rules
// - Activations are row-major f32, one row per token of the step, unless said otherwise.
// - `rows` may be any number >= 0; every result row depends on its own input row alone (and, in
//   attention, on KV pages), with an order of floating-point operations that is independent of
//   `rows`, of threads and of the instruction set (docs/decisions/0001-determinism.md).
// - Pointers are device memory of the backend, aligned to 64 bytes at buffer starts. Outputs do not
//   overlap inputs unless "in place" is said.
// - Ops check nothing: callers REQUIRE what is written here; the executor builds the args.

namespace shoal::kernels {

enum class DType : uint32_t;  // kernels/quant/block_formats.h

inline constexpr int kQuantBlock = 32;         // columns that share one activation scale
inline constexpr int kPageTokens = 16;         // tokens in a KV page
inline constexpr int kAttentionTile = 64;      // positions whose scores are formed together
inline constexpr int kAttentionSegment = 512;  // positions joined as one partial softmax
inline constexpr int kMaxLeaves = 8;           // leaves of the K tree of a row-parallel product

// Activations quantised per row and per block of 32 columns: x[r][k] ~ scale * q, where
// scale = max|x| / 127 over the block and q = round-to-nearest-even(x * (127 / max|x|)); a block
// whose max|x| is below 1e-30 has scale 0 and q 0. A block with a value that is NaN or infinite has
// scale NaN, sum 0 and any q: whatever is computed from it is NaN.
//   q     [width/32][rows][32]     one block of all rows, then the next block
//   scale [width/32][rows]
//   sum   [width/32][rows]         sum of the 32 q of the block
// REQUIRES: width % 32 == 0.
struct QuantizedRows {
  int8_t* q = nullptr;
  float* scale = nullptr;
  int32_t* sum = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
};

// Looks up rows of a weight in the file's own format.  out[r] = dequantise(table[tokens[r]]).
// REQUIRES: 0 <= tokens[r] < number of rows of the table.
struct EmbedArgs {
  const void* table = nullptr;  // [vocab, width] of `type`
  DType type{};
  int64_t row_bytes = 0;
  int64_t width = 0;
  const int32_t* tokens = nullptr;  // [rows]
  int64_t rows = 0;
  float* out = nullptr;  // [rows, width]
};

// out = (x * (1 / sqrt(mean(x^2) + eps))) * weight, over groups of `width` columns of each row:
// group g of row r starts at x + r * x_stride + g * width. The sum of squares uses 16 lanes (lane =
// column % 16, columns in order) and the fixed join of kernels/cpu (lane i += lane i+8, +4, +2,
// +1); a row whose squares overflow becomes NaN, as it cannot be told from one with an infinite
// value. In place is allowed. (Zhang & Sennrich, Root Mean Square Layer Normalization, 2019.)
struct RmsNormArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [width], the same for every group
  float eps = 0;
  int64_t rows = 0;
  int64_t groups = 1;  // 1, or the heads of a per-head norm
  int64_t width = 0;
  float* out =
      nullptr;  // f32 result, same striding with out_stride; null when only `quantized` is wanted
  int64_t out_stride = 0;
  QuantizedRows quantized;  // q == null when not wanted; else groups == 1
};

struct QuantizeArgs {
  const float* x = nullptr;  // [rows, width]
  int64_t x_stride = 0;
  QuantizedRows out;  // rows, width are those of `out`
};

// One weight (or a part of its rows), packed by Backend::Pack. Opaque here.
struct PackedWeight;

// The order in which leaves of the K tree are joined: acc[dst] += acc[src].
struct JoinStep {
  int32_t dst = 0;
  int32_t src = 0;

  bool operator==(const JoinStep&) const = default;
};

// How a product's K axis is cut (row-parallel products). Leaf i covers columns
// [leaf_ends[i-1], leaf_ends[i]) of this shard. Steps run in order; the value of root p is what
// leaf roots[p] then holds. num_leaves == 0 means one leaf over all of K.
struct KSplit {
  int32_t num_leaves = 0;
  int32_t num_steps = 0;
  int32_t num_roots = 0;
  int64_t leaf_ends[kMaxLeaves] = {};
  JoinStep steps[kMaxLeaves] = {};
  int32_t roots[kMaxLeaves] = {};
};

// out[r][n] = bias[n] + sum_k w[n][k] * x[r][k], for the concatenated rows n of all segments.
// Order per output: within a leaf, blocks of 32 columns in order. Quantised weights: the dot
// product of a block is an exact int32; acc = fma(d * scale, float(dot), acc), then, for types with
// an offset m, acc = fma(m, scale * float(sum), acc). Types with two scales a block do the two
// halves in order. Float weights: acc = fma(w, x, acc) for each column in order. bias is added
// last. With a KSplit the result is one partial per root: out[p] = [rows, N] at out + p *
// root_stride. REQUIRES: all segments have the same K; segments of quantised types read `xq`, float
// ones read `x`; leaf_ends are multiples of 32 (the last aside).
struct MatMulArgs {
  const PackedWeight* const* segments = nullptr;
  int32_t num_segments = 0;
  QuantizedRows xq;          // q == null when every segment is a float type
  const float* x = nullptr;  // null when every segment is quantised
  int64_t x_stride = 0;
  int64_t rows = 0;
  KSplit split;
  const float* bias = nullptr;  // [N] or null; REQUIRES null with a KSplit of several roots
  float* out = nullptr;
  int64_t out_stride = 0;   // columns between rows
  int64_t root_stride = 0;  // floats between partials
};

// Joins the partials of a row-parallel product from all ranks and adds the residual:
//   v[i] = parts[i][r];  v[dst] += v[src] for each step;  out = residual + v[0]
// and, when a weight is given, the RMS norm of `out` (as RmsNormArgs). out may be == residual.
// REQUIRES: 1 <= num_parts <= kMaxLeaves.
struct JoinAddArgs {
  const float* const* parts = nullptr;  // num_parts x [rows, width], leaf order
  int32_t num_parts = 0;
  const JoinStep* steps = nullptr;
  int32_t num_steps = 0;
  const float* residual = nullptr;  // [rows, width]
  float* out = nullptr;             // [rows, width]
  int64_t rows = 0;
  int64_t width = 0;
  const float* norm_weight = nullptr;  // [width], or null: no norm follows
  float eps = 0;
  float* normed = nullptr;  // [rows, width] f32, or null
  QuantizedRows quantized;  // the norm's result quantised; q == null when not wanted
};

enum class RopeStyle : int32_t {
  kAdjacent = 0,  // pairs (2i, 2i+1): GGUF's llama
  kHalves = 1,    // pairs (i, i + rope_dim/2): qwen, gemma, phi
};

// Rotary embedding in place (Su et al., RoFormer, 2021). Pair i of a head at position p turns by
// the angle whose cosine is table[p][2i] and sine table[p][2i+1]:  a' = a*cos - b*sin, b' = a*sin +
// b*cos, each product rounded before the sum (no fma). Columns past rope_dim stay.
struct RopeArgs {
  float* x = nullptr;  // head h of row r at x + r * x_stride + h * head_dim
  int64_t x_stride = 0;
  int64_t rows = 0;
  int32_t heads = 0;
  int32_t head_dim = 0;
  int32_t rope_dim = 0;  // even, <= head_dim
  RopeStyle style = RopeStyle::kAdjacent;
  const int32_t* positions = nullptr;  // [rows]
  const float* table = nullptr;        // [max positions, rope_dim]
};

// How K and V are kept.
enum class KvType : int32_t { kF32 = 0, kF16 = 1, kBf16 = 2, kInt8 = 3 };

// The KV cache of one layer: page b, KV head h holds
//
//   | K, transposed [head_dim][16 tokens] | V [16 tokens][head_dim] |            f32, f16, bf16
//   | K int8, transposed | V int8 | scales of K [16] f32 | scales of V [16] f32 |        int8
//
// so that the 16 scores of a page are 16 lanes of one vector, and values are read along head_dim.
//   pages [num_pages][kv_heads]; bytes of a page: KvPageBytes() of kernels/quant/kv_type.h
struct KvPages {
  void* base = nullptr;
  KvType type = KvType::kF16;
  int32_t num_pages = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
};

// Where the tokens of a step lie. Shared by KV store and attention.
//   row r belongs to sequence s when seq_row_begin[s] <= r < seq_row_begin[s+1]; its position is
//   positions[r]; position p of sequence s lies in page block_tables[s][p / 16], slot p % 16.
struct StepLayout {
  int64_t rows = 0;
  int32_t num_seqs = 0;
  const int32_t* seq_row_begin = nullptr;        // [num_seqs + 1]
  const int32_t* positions = nullptr;            // [rows], consecutive inside a sequence
  const int32_t* const* block_tables = nullptr;  // [num_seqs]
};

// Rounds k and v to the pages' type (nearest even) and writes them. Values beyond f16 become
// infinite. int8 has one scale for the head_dim values x of a token and head, K and V apart:
// scale = max|x| / 127, q = round-to-nearest-even(x * (127 / max|x|)); where max|x| is below 1e-30
// both are 0; where a value is not finite the scale is NaN and every q 0.
struct KvStoreArgs {
  const float* k = nullptr;  // KV head h of row r at k + r * stride + h * head_dim
  const float* v = nullptr;
  int64_t stride = 0;
  StepLayout layout;
  KvPages pages;
};

// Causal attention of a step's rows over the pages, the step's own tokens included (they were
// stored before). Query head h reads KV head kv_head_of[h].
//   out[r][h] = softmax(q . K[0..position] * scale) V[0..position]
// Order: tiles of 64 absolute positions; a score adds q[d]*k[d] by fma over d in order from 0, then
// is multiplied by `scale`. int8 pages: k[d] and v[d] stand for the integers; the sum is multiplied
// by the scale of K before `scale`, and p by the scale of V before p*v (not in the lane sums).
// Within a segment of 512 positions a running maximum (tile by tile), lane sums (lane = position %
// 16) and fma accumulation of p*v over positions in order, both multiplied by exp(old maximum -
// new) when the maximum grows; sums use the fixed lane join.
// Segments are joined in order in the same way, total = fma(segment, exp(its maximum - new),
// total * exp(old maximum - new)), and the total is divided by its sum at the end. Positions after
// the row's own are -inf by selection and their values are not read (pages may hold NaN there); a
// fully masked tile is skipped. REQUIRES: head_dim <= 512.
struct AttentionArgs {
  const float* q = nullptr;  // query head h of row r at q + r * q_stride + h * head_dim
  int64_t q_stride = 0;
  int32_t heads = 0;
  const int32_t* kv_head_of = nullptr;  // [heads], local indices
  float scale = 0;
  StepLayout layout;
  KvPages pages;
  float* out = nullptr;  // head h of row r at out + r * out_stride + h * head_dim
  int64_t out_stride = 0;
};

// out = silu(gate) * up, silu(x) = x / (1 + exp(-x)) with the kernels' own exp (0 below -87.33,
// infinity above 88).
struct SwiGluArgs {
  const float* gate_up = nullptr;  // row r: gate [width], then up [width]
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t width = 0;
  float* out = nullptr;     // [rows, width] f32, or null
  QuantizedRows quantized;  // q == null when not wanted
};

// out[i] = x[indices[i]].
struct GatherRowsArgs {
  const float* x = nullptr;  // [*, width]
  const int32_t* indices = nullptr;
  int64_t rows = 0;  // number of indices
  int64_t width = 0;
  float* out = nullptr;
};

}  // namespace shoal::kernels
