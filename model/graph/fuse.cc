#include <utility>

#include "model/graph/passes.h"

// Each rule has a predicate that finds its second node's partner, and a rewrite. Outputs that a
// rewrite leaves without readers are EliminateDead's to drop.
namespace shoal::graph {
namespace {

constexpr int kNone = -1;

// --- Add + norm ----------------------------------------------------------------------------------

// The JoinAdd without a norm whose sum is normed by `node`.
int MatchAddNorm(const Graph& graph, const Node& node) {
  const auto* norm = std::get_if<RmsNormOp>(&node.op);
  if (norm == nullptr || norm->per_head) {
    return kNone;
  }
  const int producer = graph.Producer(node.inputs[0]);
  const auto* add = std::get_if<JoinAddOp>(&graph.nodes[producer].op);
  return add != nullptr && add->norm_weight.empty() ? producer : kNone;
}

void RewriteAddNorm(int add_index, int norm_index, Graph* graph) {
  const Node norm = std::move(graph->nodes[norm_index]);
  graph->nodes.erase(graph->nodes.begin() + norm_index);
  Node& add = graph->nodes[add_index];
  std::get<JoinAddOp>(add.op).norm_weight = std::get<RmsNormOp>(norm.op).weight;
  std::get<JoinAddOp>(add.op).eps = std::get<RmsNormOp>(norm.op).eps;
  add.outputs[1] = norm.outputs[0];
  add.outputs[2] = norm.outputs[1];
}

// --- Norm or SwiGLU + quantise -------------------------------------------------------------------

// The op that can write, beside the value that `node` quantises, its quantised form.
int MatchQuantize(const Graph& graph, const Node& node) {
  if (!std::holds_alternative<QuantizeOp>(node.op)) {
    return kNone;
  }
  const int index = graph.Producer(node.inputs[0]);
  const Node& producer = graph.nodes[index];
  const auto* norm = std::get_if<RmsNormOp>(&producer.op);
  const bool can_quantize =
      (norm != nullptr && !norm->per_head) || std::holds_alternative<SwiGluOp>(producer.op) ||
      (std::holds_alternative<JoinAddOp>(producer.op) && producer.outputs[1] == node.inputs[0]);
  return can_quantize && producer.outputs.back() == kNoValue ? index : kNone;
}

void RewriteQuantize(int producer_index, int quantize_index, Graph* graph) {
  const ValueId quantized = graph->nodes[quantize_index].outputs[0];
  graph->nodes.erase(graph->nodes.begin() + quantize_index);
  graph->nodes[producer_index].outputs.back() = quantized;
}

// --- The rotations of q and k --------------------------------------------------------------------

// A rotation like that of `node` over the columns just before its own.
int MatchRopes(const Graph& graph, int node_index) {
  const Node& node = graph.nodes[node_index];
  const auto* rope = std::get_if<RopeOp>(&node.op);
  if (rope == nullptr) {
    return kNone;
  }
  const Node& slice = graph.nodes[graph.Producer(node.inputs[0])];
  for (int i = 0; i < node_index; ++i) {
    const auto* other = std::get_if<RopeOp>(&graph.nodes[i].op);
    if (other == nullptr || graph.nodes[i].layer != node.layer) {
      continue;
    }
    RopeOp same = *other;
    same.heads = rope->heads;
    const Node& other_slice = graph.nodes[graph.Producer(graph.nodes[i].inputs[0])];
    const auto* begin = std::get_if<SliceOp>(&slice.op);
    const auto* other_begin = std::get_if<SliceOp>(&other_slice.op);
    if (same == *rope && begin != nullptr && other_begin != nullptr &&
        slice.inputs == other_slice.inputs &&
        other_begin->begin + graph.value(other_slice.outputs[0]).width == begin->begin) {
      return i;
    }
  }
  return kNone;
}

void RewriteRopes(int first_index, int second_index, Graph* graph) {
  const Node first = graph->nodes[first_index];
  const Node second = graph->nodes[second_index];
  const Node slice = graph->nodes[graph->Producer(first.inputs[0])];
  const int64_t first_width = graph->value(first.outputs[0]).width;

  Value both = graph->value(first.outputs[0]);
  both.width += graph->value(second.outputs[0]).width;
  const ValueId sliced = graph->AddValue(both);
  const ValueId turned = graph->AddValue(both);
  RopeOp rope = std::get<RopeOp>(first.op);
  rope.heads += std::get<RopeOp>(second.op).heads;

  graph->nodes.erase(graph->nodes.begin() + second_index);
  graph->nodes.erase(graph->nodes.begin() + first_index);
  const auto node = [&](Op op, ValueId input, ValueId output) {
    return Node{.op = std::move(op), .inputs = {input}, .outputs = {output}, .layer = first.layer};
  };
  const Node fused[] = {
      node(std::get<SliceOp>(slice.op), slice.inputs[0], sliced),
      node(std::move(rope), sliced, turned),
      node(SliceOp{.begin = 0}, turned, first.outputs[0]),
      node(SliceOp{.begin = first_width}, turned, second.outputs[0]),
  };
  graph->nodes.insert(graph->nodes.begin() + first_index, std::begin(fused), std::end(fused));
}

// Applies the first rule that fits the node at `index`.
bool ApplyRules(int index, Graph* graph) {
  if (const int add = MatchAddNorm(*graph, graph->nodes[index]); add != kNone) {
    RewriteAddNorm(add, index, graph);
    return true;
  }
  if (const int producer = MatchQuantize(*graph, graph->nodes[index]); producer != kNone) {
    RewriteQuantize(producer, index, graph);
    return true;
  }
  if (const int rope = MatchRopes(*graph, index); rope != kNone) {
    RewriteRopes(rope, index, graph);
    return true;
  }
  return false;
}

}  // namespace

bool Fuse(Graph* graph) {
  bool changed = false;
  for (int i = 0; i < static_cast<int>(graph->nodes.size()); ++i) {
    while (i < static_cast<int>(graph->nodes.size()) && ApplyRules(i, graph)) {
      changed = true;
    }
  }
  return changed;
}

}  // namespace shoal::graph
