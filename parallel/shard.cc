#include "parallel/shard.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>
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

absl::Status CheckPipelineSize(int num_layers, int pp) {
  if (pp >= 1 && pp <= num_layers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("pipeline parallel size ", pp, " does not fit ", num_layers,
                   " layers; set --pipeline-parallel-size to 1..", num_layers));
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

absl::StatusOr<std::vector<Range>> SplitLayers(absl::Span<const int64_t> layer_costs,
                                               int64_t last_cost, int pp) {
  const int num_layers = static_cast<int>(layer_costs.size());
  SHOAL_RETURN_IF_ERROR(CheckPipelineSize(num_layers, pp));
  std::vector<int64_t> cost_before(num_layers + 1, 0);
  for (int i = 0; i < num_layers; ++i) cost_before[i + 1] = cost_before[i] + layer_costs[i];
  const auto stage_cost = [&](int stage, int begin, int end) {
    return static_cast<double>(cost_before[end] - cost_before[begin] +
                               (stage == pp - 1 ? last_cost : 0));
  };
  // best[stage][end]: of the ways to give layers [0, end) to stages [0, stage], the value of the
  // best, and where its last stage begins. First the largest cost is made least; then, with that
  // as the limit, the sum of squares.
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  double limit = kInfinite;
  std::vector<std::vector<int>> begins(pp, std::vector<int>(num_layers + 1, 0));
  for (const bool by_squares : {false, true}) {
    std::vector<double> before(num_layers + 1, kInfinite);
    before[0] = 0;
    for (int stage = 0; stage < pp; ++stage) {
      std::vector<double> best(num_layers + 1, kInfinite);
      for (int end = stage + 1; end <= num_layers; ++end) {
        for (int begin = stage; begin < end; ++begin) {
          const double cost = stage_cost(stage, begin, end);
          if (cost > limit || before[begin] == kInfinite) continue;
          const double value =
              by_squares ? before[begin] + cost * cost : std::max(before[begin], cost);
          if (value >= best[end]) continue;
          best[end] = value;
          begins[stage][end] = begin;
        }
      }
      before = std::move(best);
    }
    if (!by_squares) limit = before[num_layers];
  }
  std::vector<Range> stages(pp);
  for (int stage = pp - 1, end = num_layers; stage >= 0; --stage) {
    stages[stage] = {begins[stage][end], end};
    end = begins[stage][end];
  }
  return stages;
}

absl::StatusOr<std::vector<Range>> TakeLayers(absl::Span<const int64_t> counts, int num_layers,
                                              int pp) {
  SHOAL_RETURN_IF_ERROR(CheckPipelineSize(num_layers, pp));
  std::vector<Range> stages;
  int64_t end = 0;
  bool is_possible = static_cast<int>(counts.size()) == pp;
  for (const int64_t count : counts) {
    is_possible = is_possible && count >= 1 && count <= num_layers - end;
    stages.push_back({end, end + count});
    end += is_possible ? count : 0;
  }
  if (!is_possible || end != num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("stages of ", absl::StrJoin(counts, ","), " layers: the model has ",
                     num_layers, " layers for ", pp, " stages; set --stage-layers to ", pp,
                     " numbers from 1 on that make ", num_layers, ", or leave it out"));
  }
  return stages;
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
