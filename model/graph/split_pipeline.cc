#include <glog/logging.h>

#include <utility>

#include "base/status_macros.h"
#include "model/graph/passes.h"
#include "parallel/shard.h"

namespace shoal::graph {
namespace {

// The index of the first node of a layer, or of what follows the layers.
size_t BeginOf(int64_t layer, const Graph& graph) {
  bool in_layers = false;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const int32_t node_layer = graph.nodes[i].layer;
    if (node_layer == layer || (in_layers && node_layer < 0)) return i;
    in_layers = node_layer >= 0;
  }
  LOG(FATAL) << "layer " << layer << " is not in the graph";
}

// The one value that nodes before index `border` write and others read.
ValueId ValueAcross(size_t border, const Graph& graph) {
  std::vector<bool> is_written_before(graph.values.size(), false);
  for (size_t i = 0; i < border; ++i) {
    for (const ValueId id : graph.nodes[i].outputs) {
      if (id != kNoValue) is_written_before[id] = true;
    }
  }
  ValueId across = kNoValue;
  for (size_t i = border; i < graph.nodes.size(); ++i) {
    for (const ValueId id : graph.nodes[i].inputs) {
      if (id == kNoValue || !is_written_before[id]) continue;
      CHECK(across == kNoValue || across == id) << "more than one value crosses a stage's border";
      across = id;
    }
  }
  CHECK(across != kNoValue);
  const Value& value = graph.value(across);
  CHECK(value.form == Form::kFloat && value.rows == RowSet::kTokens);
  return across;
}

// Of the weights that a token reads in each layer; the last entry is what follows them, which only
// tokens with output read: it counts half.
std::vector<int64_t> CountWeights(const Graph& graph) {
  std::vector<int64_t> counts(static_cast<size_t>(graph.num_layers) + 1, 0);
  for (const Node& node : graph.nodes) {
    const auto* product = std::get_if<MatMulOp>(&node.op);
    if (product == nullptr) continue;
    int64_t& count = node.layer < 0 ? counts.back() : counts[node.layer];
    for (const WeightUse& weight : product->segments) count += weight.rows() * weight.cols();
  }
  counts.back() /= 2;
  return counts;
}

}  // namespace

absl::StatusOr<std::vector<parallel::Range>> StageLayers(const Graph& graph, int pp,
                                                         absl::Span<const int64_t> counts) {
  if (!counts.empty()) {
    return parallel::TakeLayers(counts, static_cast<int>(graph.num_layers), pp);
  }
  std::vector<int64_t> costs = CountWeights(graph);
  const int64_t last_cost = costs.back();
  costs.pop_back();
  return parallel::SplitLayers(costs, last_cost, pp);
}

bool SplitPipeline(const std::vector<parallel::Range>& layers, int stage, Graph* graph) {
  const int pp = static_cast<int>(layers.size());
  if (graph->stage.pp == pp) return false;
  CHECK(graph->stage.pp == 1 && graph->sharded);
  const StageInfo info{.pp = pp, .stage = stage, .first_layer = layers[stage].begin};
  const size_t begin = info.is_first() ? 0 : BeginOf(layers[stage].begin, *graph);
  const size_t end = info.is_last() ? graph->nodes.size() : BeginOf(layers[stage].end, *graph);
  std::vector<Node> nodes;
  if (!info.is_first()) {
    nodes.push_back({.op = ReceiveOp{}, .inputs = {}, .outputs = {ValueAcross(begin, *graph)}});
  }
  const ValueId sent = info.is_last() ? kNoValue : ValueAcross(end, *graph);
  std::move(graph->nodes.begin() + static_cast<int64_t>(begin),
            graph->nodes.begin() + static_cast<int64_t>(end), std::back_inserter(nodes));
  if (!info.is_last()) {
    nodes.push_back({.op = SendOp{}, .inputs = {sent}, .outputs = {}});
    graph->logits = kNoValue;
  }
  graph->nodes = std::move(nodes);
  graph->stage = info;
  graph->num_layers = layers[stage].size();
  return true;
}

}  // namespace shoal::graph
