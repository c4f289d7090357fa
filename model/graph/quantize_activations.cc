#include <algorithm>
#include <utility>

#include "model/graph/passes.h"

namespace shoal::graph {
namespace {

bool IsQuantizedSegment(const WeightUse& weight) { return kernels::IsQuantized(weight.type); }

// A product with quantised weights that still has no quantised rows to read.
bool Match(const Node& node) {
  const auto* matmul = std::get_if<MatMulOp>(&node.op);
  return matmul != nullptr && node.inputs[1] == kNoValue &&
         std::any_of(matmul->segments.begin(), matmul->segments.end(), IsQuantizedSegment);
}

// The quantised form of x, from a node before `index`; adds that node just there if there is none.
ValueId QuantizedForm(ValueId x, size_t* index, Graph* graph) {
  for (size_t i = 0; i < *index; ++i) {
    const Node& node = graph->nodes[i];
    if (std::holds_alternative<QuantizeOp>(node.op) && node.inputs[0] == x) {
      return node.outputs[0];
    }
  }
  Value value = graph->value(x);
  value.form = Form::kQuantized;
  const ValueId quantized = graph->AddValue(value);
  graph->nodes.insert(graph->nodes.begin() + static_cast<int64_t>(*index),
                      {.op = QuantizeOp{},
                       .inputs = {x},
                       .outputs = {quantized},
                       .layer = graph->nodes[*index].layer});
  ++*index;
  return quantized;
}

}  // namespace

bool QuantizeActivations(Graph* graph) {
  bool changed = false;
  for (size_t i = 0; i < graph->nodes.size(); ++i) {
    if (!Match(graph->nodes[i])) {
      continue;
    }
    const ValueId quantized = QuantizedForm(graph->nodes[i].inputs[0], &i, graph);
    Node& node = graph->nodes[i];
    const auto& segments = std::get<MatMulOp>(node.op).segments;
    node.inputs[1] = quantized;
    if (std::all_of(segments.begin(), segments.end(), IsQuantizedSegment)) {
      node.inputs[0] = kNoValue;
    }
    changed = true;
  }
  return changed;
}

}  // namespace shoal::graph
