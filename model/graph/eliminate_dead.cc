#include <algorithm>
#include <vector>

#include "model/graph/passes.h"

namespace shoal::graph {
namespace {

// How often each value is read; the graph's output counts as one reader.
std::vector<int> CountReaders(const Graph& graph) {
  std::vector<int> readers(graph.values.size(), 0);
  for (const Node& node : graph.nodes) {
    for (const ValueId id : node.inputs) {
      if (id != kNoValue) {
        ++readers[id];
      }
    }
  }
  if (graph.logits != kNoValue) {
    ++readers[graph.logits];
  }
  return readers;
}

// Storing keys and values serves later steps too, sending other stages.
bool HasEffect(const Node& node) {
  return std::holds_alternative<KvStoreOp>(node.op) || std::holds_alternative<SendOp>(node.op);
}

}  // namespace

bool EliminateDead(Graph* graph) {
  bool changed = false;
  std::vector<int> readers = CountReaders(*graph);
  // From the back, so that a node is seen after all that read it.
  for (size_t i = graph->nodes.size(); i-- > 0;) {
    Node& node = graph->nodes[i];
    for (ValueId& output : node.outputs) {
      if (output != kNoValue && readers[output] == 0 && !HasEffect(node)) {
        output = kNoValue;
        changed = true;
      }
    }
    if (HasEffect(node) || std::any_of(node.outputs.begin(), node.outputs.end(),
                                       [](ValueId id) { return id != kNoValue; })) {
      continue;
    }
    for (const ValueId id : node.inputs) {
      if (id != kNoValue) {
        --readers[id];
      }
    }
    graph->nodes.erase(graph->nodes.begin() + static_cast<int64_t>(i));
  }
  return changed;
}

}  // namespace shoal::graph
