#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "parallel/join_tree.h"

// The only slicing arithmetic: which heads, rows, columns, tokens and layers a rank owns. All
// functions are pure and fast; what a model file or a flag can make wrong is INVALID_ARGUMENT.
//
// One rule within a stage: of n things in a row, part i of p owns [floor(i*n/p), floor((i+1)*n/p)).

namespace shoal::parallel {

// Activation and weight blocks have 32 columns; no cut lies inside one.
inline constexpr int kBlockColumns = 32;
// Sampling sums the vocabulary in chunks of 256 tokens; a shard owns whole chunks.
inline constexpr int kVocabChunk = 256;

struct AttentionDims {
  int heads = 0;     // query heads
  int kv_heads = 0;  // divides heads
  int head_dim = 0;
};

// How K, the input columns of a row-parallel product, is cut into units and leaves. It follows
// from the model alone; the tensor parallel size only says who owns which leaves.
struct ColumnTree {
  JoinTree tree;
  int64_t columns_per_unit = 0;  // a multiple of kBlockColumns
  int64_t num_columns = 0;       // the last unit may be short

  Range ColumnsOf(Range units) const;
  Range LeafColumns(int leaf) const { return ColumnsOf(tree.leaf(leaf)); }
};

// Attention output projection, heads * head_dim columns. A unit is the smallest group of heads
// whose columns are a multiple of 32 (one head if head_dim is).
absl::StatusOr<ColumnTree> AttentionColumns(const AttentionDims& dims);
// FFN down projection, ffn columns. A unit is 32 columns.
absl::StatusOr<ColumnTree> FfnColumns(int ffn);

struct AttentionShard {
  Range q_heads;   // rows of Q: q_heads * head_dim
  Range kv_heads;  // every KV head that q_heads use: a straddled one is held by both shards
  Range leaves;    // of AttentionColumns().tree
  Range columns;   // of the output projection: q_heads * head_dim
  int heads_per_kv_head = 1;

  // The KV head, counted from kv_heads.begin, of the query head counted from q_heads.begin.
  int64_t LocalKvHead(int64_t local_q_head) const {
    return (q_heads.begin + local_q_head) / heads_per_kv_head - kv_heads.begin;
  }
};

struct FfnShard {
  Range rows;    // of gate and up, and the same columns of down
  Range leaves;  // of FfnColumns().tree
};

struct VocabShard {
  Range tokens;  // rows of the head: whole chunks, the vocabulary's last one may be short
  Range chunks;  // empty where the vocabulary has fewer chunks than there are shards
};

// REQUIRES for the Shard functions: 0 <= shard < tp.
// INVALID_ARGUMENT when a dimension is impossible, or when some shard would own no leaf, or no
// multiple of 32 columns; the message names the dimensions, tp and the legal sizes.
absl::StatusOr<AttentionShard> ShardAttention(const AttentionDims& dims, int tp, int shard);
absl::StatusOr<FfnShard> ShardFfn(int ffn, int tp, int shard);
absl::StatusOr<VocabShard> ShardVocab(int vocab, int tp, int shard);

// Consecutive transformer layers for each of pp pipeline stages, so that the most expensive stage
// costs as little as can be and, among those ways, the stages differ least. `last_cost`: of what
// the last stage has beside its layers. INVALID_ARGUMENT when a stage would own none.
absl::StatusOr<std::vector<Range>> SplitLayers(absl::Span<const int64_t> layer_costs,
                                               int64_t last_cost, int pp);
// The same with the number of layers of each stage given. INVALID_ARGUMENT unless there are pp of
// them, each at least 1, that make num_layers.
absl::StatusOr<std::vector<Range>> TakeLayers(absl::Span<const int64_t> counts, int num_layers,
                                              int pp);

// The tensor parallel sizes that both the attention and the FFN allow, ascending: 1 is always
// among them. INVALID_ARGUMENT when a dimension is impossible at any size.
absl::StatusOr<std::vector<int>> LegalTensorParallelSizes(const AttentionDims& dims, int ffn);

// The door check, before any weight is read: OK when tp is one of the legal sizes.
absl::Status CheckTensorParallelSize(const AttentionDims& dims, int ffn, int tp);

}  // namespace shoal::parallel
