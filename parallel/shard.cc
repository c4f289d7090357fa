#include "parallel/shard.h"

#include <glog/logging.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace shoal::parallel {
namespace {

Range EvenPart(int64_t n, int num_parts, int part) {
  CHECK(part >= 0 && part < num_parts) << "part " << part << " of " << num_parts;
  return {part * n / num_parts, (part + int64_t{1}) * n / num_parts};
}

std::string Describe(const AttentionDims& dims) {
  return absl::StrCat(dims.heads, " heads (", dims.kv_heads, " KV heads, head size ", dims.head_dim,
                      ")");
}

absl::Status CheckDims(const AttentionDims& dims) {
  if (dims.heads < 1 || dims.kv_heads < 1 || dims.head_dim < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention with ", Describe(dims), ": each must be at least 1"));
  }
  if (dims.heads % dims.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("attention with ", Describe(dims),
                                                   ": the KV heads must divide the query heads"));
  }
  return absl::OkStatus();
}

// Shards own whole leaves, so there are as many legal sizes as leaves; a product whose columns do
// not end at a block border cannot be cut at all.
int MaxSize(const ColumnTree& columns) {
  return columns.num_columns % columns.columns_per_unit == 0 ? columns.tree.num_leaves() : 1;
}

std::vector<int> SizesUpTo(int max) {
  std::vector<int> sizes(max);
  std::iota(sizes.begin(), sizes.end(), 1);
  return sizes;
}

absl::Status CheckSize(absl::string_view what, int max_size, int tp) {
  if (tp >= 1 && tp <= max_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor parallel size ", tp, " does not fit ", what, "; legal sizes: ",
      absl::StrJoin(SizesUpTo(max_size), ", "), "; set --tensor-parallel-size to one of them"));
}

}  // namespace

Range ColumnTree::ColumnsOf(Range units) const {
  return {std::min(units.begin * columns_per_unit, num_columns),
          std::min(units.end * columns_per_unit, num_columns)};
}

absl::StatusOr<ColumnTree> AttentionColumns(const AttentionDims& dims) {
  SHOAL_RETURN_IF_ERROR(CheckDims(dims));
  const int64_t columns_per_unit = std::lcm<int64_t, int64_t>(dims.head_dim, kBlockColumns);
  const int64_t num_columns = int64_t{dims.heads} * dims.head_dim;
  const int64_t num_units = (num_columns + columns_per_unit - 1) / columns_per_unit;
  return ColumnTree{JoinTree::Create(num_units), columns_per_unit, num_columns};
}

absl::StatusOr<ColumnTree> FfnColumns(int ffn) {
  if (ffn < 1) {
    return absl::InvalidArgumentError(absl::StrCat("FFN size ", ffn, ": must be at least 1"));
  }
  const int64_t num_units = (int64_t{ffn} + kBlockColumns - 1) / kBlockColumns;
  return ColumnTree{JoinTree::Create(num_units), kBlockColumns, ffn};
}

absl::StatusOr<AttentionShard> ShardAttention(const AttentionDims& dims, int tp, int shard) {
  SHOAL_ASSIGN_OR_RETURN(const ColumnTree columns, AttentionColumns(dims));
  SHOAL_RETURN_IF_ERROR(CheckSize(Describe(dims), MaxSize(columns), tp));
  AttentionShard result;
  result.leaves = EvenPart(columns.tree.num_leaves(), tp, shard);
  result.columns = columns.ColumnsOf(columns.tree.UnitsOf(result.leaves));
  result.q_heads = {result.columns.begin / dims.head_dim, result.columns.end / dims.head_dim};
  result.heads_per_kv_head = dims.heads / dims.kv_heads;
  result.kv_heads = {result.q_heads.begin / result.heads_per_kv_head,
                     (result.q_heads.end - 1) / result.heads_per_kv_head + 1};
  return result;
}

absl::StatusOr<FfnShard> ShardFfn(int ffn, int tp, int shard) {
  SHOAL_ASSIGN_OR_RETURN(const ColumnTree columns, FfnColumns(ffn));
  SHOAL_RETURN_IF_ERROR(
      CheckSize(absl::StrCat("an FFN of ", ffn, " columns in blocks of ", kBlockColumns),
                MaxSize(columns), tp));
  FfnShard result;
  result.leaves = EvenPart(columns.tree.num_leaves(), tp, shard);
  result.rows = columns.ColumnsOf(columns.tree.UnitsOf(result.leaves));
  return result;
}

absl::StatusOr<VocabShard> ShardVocab(int vocab, int tp, int shard) {
  if (vocab < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocabulary of ", vocab, " tokens: must be at least 1"));
  }
  const int64_t num_chunks = (int64_t{vocab} + kVocabChunk - 1) / kVocabChunk;
  VocabShard result;
  result.chunks = EvenPart(num_chunks, tp, shard);
  result.tokens = {std::min<int64_t>(result.chunks.begin * kVocabChunk, vocab),
                   std::min<int64_t>(result.chunks.end * kVocabChunk, vocab)};
  return result;
}

absl::StatusOr<Range> StageLayers(int num_layers, int pp, int stage) {
  if (pp < 1 || pp > num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("pipeline parallel size ", pp, " does not fit ", num_layers,
                     " layers; set --pipeline-parallel-size to 1..", num_layers));
  }
  return EvenPart(num_layers, pp, stage);
}

absl::StatusOr<std::vector<int>> LegalTensorParallelSizes(const AttentionDims& dims, int ffn) {
  SHOAL_ASSIGN_OR_RETURN(const ColumnTree attention, AttentionColumns(dims));
  SHOAL_ASSIGN_OR_RETURN(const ColumnTree down, FfnColumns(ffn));
  return SizesUpTo(std::min(MaxSize(attention), MaxSize(down)));
}

absl::Status CheckTensorParallelSize(const AttentionDims& dims, int ffn, int tp) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<int> sizes, LegalTensorParallelSizes(dims, ffn));
  return CheckSize(absl::StrCat(Describe(dims), " and an FFN of ", ffn), sizes.back(), tp);
}

}  // namespace shoal::parallel
