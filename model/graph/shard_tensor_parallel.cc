#include <glog/logging.h>

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status_macros.h"
#include "model/graph/passes.h"
#include "parallel/join_tree.h"
#include "parallel/shard.h"

namespace shoal::graph {
namespace {

using parallel::Range;

// How one row-parallel product is cut and joined.
struct RowCut {
  Range columns;                        // of this shard
  kernels::KSplit split;                // of this shard's columns
  std::vector<int64_t> parts_of;        // partial sums of each shard
  std::vector<kernels::JoinStep> join;  // over the parts of all shards
};

struct ShardPlan {
  int64_t head_dim = 0;
  parallel::AttentionShard attention;
  Range ffn;
  Range vocab;
  RowCut attention_out;
  RowCut down;
};

kernels::KSplit SplitOf(const parallel::ColumnTree& columns, Range leaves,
                        const std::vector<parallel::Subtree>& subtrees) {
  static_assert(parallel::JoinTree::kMaxLeaves == kernels::kMaxLeaves);
  kernels::KSplit split;
  const int64_t first_column = columns.LeafColumns(static_cast<int>(leaves.begin)).begin;
  for (int64_t leaf = leaves.begin; leaf < leaves.end; ++leaf) {
    split.leaf_ends[split.num_leaves++] =
        columns.LeafColumns(static_cast<int>(leaf)).end - first_column;
  }
  for (const parallel::Subtree& subtree : subtrees) {
    const int first_leaf = static_cast<int>(subtree.leaves.begin - leaves.begin);
    for (const kernels::JoinStep& step : columns.tree.JoinSteps(subtree)) {
      split.steps[split.num_steps++] = {first_leaf + step.dst, first_leaf + step.src};
    }
    split.roots[split.num_roots++] = first_leaf;
  }
  return split;
}

RowCut CutColumns(const parallel::ColumnTree& columns, const std::vector<Range>& leaves_of,
                  int shard, Range own_columns) {
  RowCut cut;
  cut.columns = own_columns;
  std::vector<parallel::Subtree> all;
  for (size_t s = 0; s < leaves_of.size(); ++s) {
    const std::vector<parallel::Subtree> subtrees = columns.tree.MaximalSubtrees(leaves_of[s]);
    cut.parts_of.push_back(static_cast<int64_t>(subtrees.size()));
    if (static_cast<int>(s) == shard) {
      cut.split = SplitOf(columns, leaves_of[s], subtrees);
    }
    all.insert(all.end(), subtrees.begin(), subtrees.end());
  }
  cut.join = columns.tree.JoinStepsBetween(all);
  return cut;
}

absl::StatusOr<ShardPlan> PlanShard(const model::ModelConfig& config, int tp, int shard) {
  const parallel::AttentionDims dims{.heads = static_cast<int>(config.num_heads),
                                     .kv_heads = static_cast<int>(config.num_kv_heads),
                                     .head_dim = static_cast<int>(config.head_dim)};
  const int ffn = static_cast<int>(config.ffn);
  SHOAL_RETURN_IF_ERROR(parallel::CheckTensorParallelSize(dims, ffn, tp));
  ShardPlan plan;
  plan.head_dim = config.head_dim;
  std::vector<Range> attention_leaves;
  std::vector<Range> ffn_leaves;
  for (int s = 0; s < tp; ++s) {
    SHOAL_ASSIGN_OR_RETURN(const parallel::AttentionShard attention,
                           parallel::ShardAttention(dims, tp, s));
    SHOAL_ASSIGN_OR_RETURN(const parallel::FfnShard ffn_shard, parallel::ShardFfn(ffn, tp, s));
    attention_leaves.push_back(attention.leaves);
    ffn_leaves.push_back(ffn_shard.leaves);
    if (s == shard) {
      plan.attention = attention;
      plan.ffn = ffn_shard.rows;
    }
  }
  SHOAL_ASSIGN_OR_RETURN(const parallel::VocabShard vocab,
                         parallel::ShardVocab(static_cast<int>(config.vocab), tp, shard));
  plan.vocab = vocab.tokens;
  SHOAL_ASSIGN_OR_RETURN(const parallel::ColumnTree attention_columns,
                         parallel::AttentionColumns(dims));
  SHOAL_ASSIGN_OR_RETURN(const parallel::ColumnTree ffn_columns, parallel::FfnColumns(ffn));
  plan.attention_out =
      CutColumns(attention_columns, attention_leaves, shard, plan.attention.columns);
  plan.down = CutColumns(ffn_columns, ffn_leaves, shard, plan.ffn);
  return plan;
}

Range RowsOf(const ShardPlan& plan, Role role) {
  switch (role) {
    case Role::kQuery:
      return {plan.attention.q_heads.begin * plan.head_dim,
              plan.attention.q_heads.end * plan.head_dim};
    case Role::kKey:
    case Role::kValue:
      return {plan.attention.kv_heads.begin * plan.head_dim,
              plan.attention.kv_heads.end * plan.head_dim};
    case Role::kGate:
    case Role::kUp:
      return plan.ffn;
    case Role::kHead:
      return plan.vocab;
    case Role::kAttentionOut:
    case Role::kDown:
      break;
  }
  LOG(FATAL) << RoleName(role) << " is cut by columns";
}

bool IsRowParallel(const MatMulOp& op) {
  return op.roles[0] == Role::kAttentionOut || op.roles[0] == Role::kDown;
}

class Sharder {
 public:
  Sharder(const ShardPlan& plan, int tp, int shard, Graph* graph)
      : plan_(plan), tp_(tp), shard_(shard), graph_(graph) {}

  void Run() {
    for (Node& node : std::exchange(graph_->nodes, {})) {
      Rewrite(std::move(node));
    }
    graph_->num_kv_heads = plan_.attention.kv_heads.size();
    graph_->sharded = true;
    graph_->shard = {.tp = tp_, .shard = shard_};
  }

 private:
  int64_t WidthOf(ValueId id) const { return graph_->values[id].width; }
  void SetWidth(const Node& node, int64_t width) { graph_->values[node.outputs[0]].width = width; }

  // Inputs have their new widths already: nodes are in order.
  void Rewrite(Node node) {
    for (ValueId& input : node.inputs) {
      const auto it = gathered_.find(input);
      input = it == gathered_.end() ? input : it->second;
    }
    if (auto* matmul = std::get_if<MatMulOp>(&node.op)) {
      if (IsRowParallel(*matmul)) {
        CutRowParallel(std::move(node));
        return;
      }
      CutRows(node, *matmul);
    } else if (auto* norm = std::get_if<RmsNormOp>(&node.op)) {
      norm->groups = norm->groups * WidthOf(node.inputs[0]) / WidthOf(node.outputs[0]);
      SetWidth(node, WidthOf(node.inputs[0]));
    } else if (auto* rope = std::get_if<RopeOp>(&node.op)) {
      rope->heads = WidthOf(node.inputs[0]) / rope->head_dim;
      SetWidth(node, WidthOf(node.inputs[0]));
    } else if (auto* store = std::get_if<KvStoreOp>(&node.op)) {
      store->kv_heads = plan_.attention.kv_heads.size();
    } else if (auto* attention = std::get_if<AttentionOp>(&node.op)) {
      CutHeads(node, *attention);
    } else if (std::holds_alternative<SwiGluOp>(node.op)) {
      SetWidth(node, WidthOf(node.inputs[0]));
    } else if (auto* add = std::get_if<JoinAddOp>(&node.op)) {
      const auto it = join_of_.find(node.inputs[0]);
      if (it != join_of_.end()) {
        add->steps = it->second;
      }
    }
    graph_->nodes.push_back(std::move(node));
  }

  void CutRows(const Node& node, MatMulOp& matmul) {
    int64_t width = 0;
    for (size_t i = 0; i < matmul.segments.size(); ++i) {
      const Range rows = RowsOf(plan_, matmul.roles[i]);
      matmul.segments[i].row_begin = rows.begin;
      matmul.segments[i].row_end = rows.end;
      if (!matmul.bias.empty()) {
        matmul.bias.parts[i].begin = rows.begin;
        matmul.bias.parts[i].end = rows.end;
      }
      width += rows.size();
    }
    SetWidth(node, width);
  }

  void CutHeads(const Node& node, AttentionOp& attention) {
    attention.kv_head_of.clear();
    for (int64_t head = 0; head < plan_.attention.q_heads.size(); ++head) {
      attention.kv_head_of.push_back(static_cast<int32_t>(plan_.attention.LocalKvHead(head)));
    }
    SetWidth(node, plan_.attention.q_heads.size() * attention.head_dim);
  }

  void CutRowParallel(Node node) {
    auto& matmul = std::get<MatMulOp>(node.op);
    CHECK_EQ(matmul.segments.size(), 1u);
    const RowCut& cut = matmul.roles[0] == Role::kDown ? plan_.down : plan_.attention_out;
    matmul.segments[0].col_begin = cut.columns.begin;
    matmul.segments[0].col_end = cut.columns.end;
    matmul.split = cut.split;
    const ValueId partials = node.outputs[0];
    graph_->values[partials].form = Form::kPartials;
    graph_->values[partials].parts = cut.split.num_roots;
    const int32_t layer = node.layer;
    graph_->nodes.push_back(std::move(node));
    if (tp_ == 1) {
      join_of_[partials] = cut.join;
      return;
    }
    Value all = graph_->value(partials);
    all.parts = 0;
    for (const int64_t parts : cut.parts_of) {
      all.parts += parts;
    }
    const ValueId gathered = graph_->AddValue(all);
    gathered_[partials] = gathered;
    graph_->nodes.push_back({.op = AllGatherOp{.parts_of = cut.parts_of},
                             .inputs = {partials},
                             .outputs = {gathered},
                             .layer = layer});
    join_of_[gathered] = cut.join;
  }

  const ShardPlan& plan_;
  const int tp_;
  const int shard_;
  Graph* const graph_;
  absl::flat_hash_map<ValueId, ValueId> gathered_;  // partials -> what later nodes read instead
  absl::flat_hash_map<ValueId, std::vector<kernels::JoinStep>> join_of_;
};

}  // namespace

absl::StatusOr<bool> ShardTensorParallel(const model::ModelConfig& config, int tp, int shard,
                                         Graph* graph) {
  if (graph->sharded) {
    return false;
  }
  SHOAL_ASSIGN_OR_RETURN(const ShardPlan plan, PlanShard(config, tp, shard));
  Sharder(plan, tp, shard, graph).Run();
  return true;
}

}  // namespace shoal::graph
