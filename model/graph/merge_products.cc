#include <utility>

#include "model/graph/passes.h"

namespace shoal::graph {
namespace {

// Whether a product may take over the rows of a later one: both read the same activations, neither
// is cut along K, and biases are on both or on none.
bool Match(const Node& first, const Node& second) {
  const auto* a = std::get_if<MatMulOp>(&first.op);
  const auto* b = std::get_if<MatMulOp>(&second.op);
  return a != nullptr && b != nullptr && first.inputs == second.inputs &&
         first.layer == second.layer && a->split.num_roots == 0 && b->split.num_roots == 0 &&
         a->bias.empty() == b->bias.empty() && a->bias.constant == kNoConstant &&
         b->bias.constant == kNoConstant;
}

// The products at `indices` become one, at the place of the first; their results are slices of it.
void Rewrite(const std::vector<int>& indices, Graph* graph) {
  Node merged = graph->nodes[indices[0]];
  auto& product = std::get<MatMulOp>(merged.op);
  std::vector<Node> slices;
  int64_t width = 0;
  for (const int index : indices) {
    const Node& node = graph->nodes[index];
    const auto& op = std::get<MatMulOp>(node.op);
    if (index != indices[0]) {
      product.roles.insert(product.roles.end(), op.roles.begin(), op.roles.end());
      product.segments.insert(product.segments.end(), op.segments.begin(), op.segments.end());
      product.bias.parts.insert(product.bias.parts.end(), op.bias.parts.begin(),
                                op.bias.parts.end());
    }
    slices.push_back({.op = SliceOp{.begin = width},
                      .inputs = {kNoValue},
                      .outputs = node.outputs,
                      .layer = node.layer});
    width += graph->value(node.outputs[0]).width;
  }
  const ValueId all =
      graph->AddValue({.rows = graph->value(merged.outputs[0]).rows, .width = width});
  merged.outputs = {all};
  for (size_t i = indices.size(); i-- > 1;) {
    graph->nodes.erase(graph->nodes.begin() + indices[i]);
  }
  graph->nodes[indices[0]] = std::move(merged);
  for (Node& slice : slices) {
    slice.inputs = {all};
  }
  graph->nodes.insert(graph->nodes.begin() + indices[0] + 1, slices.begin(), slices.end());
}

}  // namespace

bool MergeProducts(Graph* graph) {
  bool changed = false;
  for (size_t i = 0; i < graph->nodes.size(); ++i) {
    std::vector<int> indices = {static_cast<int>(i)};
    for (size_t j = i + 1;
         j < graph->nodes.size() && graph->nodes[j].layer == graph->nodes[i].layer; ++j) {
      if (Match(graph->nodes[i], graph->nodes[j])) {
        indices.push_back(static_cast<int>(j));
      }
    }
    if (indices.size() > 1) {
      Rewrite(indices, graph);
      changed = true;
    }
  }
  return changed;
}

}  // namespace shoal::graph
