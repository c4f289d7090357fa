#include "model/graph/assign_storage.h"

#include <glog/logging.h>

#include <algorithm>

namespace shoal::graph {
namespace {

class StorageAssigner {
 public:
  explicit StorageAssigner(const Graph& graph) : graph_(graph) {
    result_.places.resize(graph.values.size());
  }

  StorageAssignment Run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      node_index_ = static_cast<int>(i);
      PlaceTogether(graph_.nodes[i]);
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      node_index_ = static_cast<int>(i);
      for (const ValueId id : graph_.nodes[i].inputs) {
        Touch(id);
      }
      PlaceOutputs(graph_.nodes[i]);
      for (const ValueId id : graph_.nodes[i].outputs) {
        Touch(id);
      }
    }
    // The logits are read after the last node, and the nodes on output rows may run again.
    if (graph_.logits != kNoValue) {
      KeepToTheEnd(graph_.logits);
    }
    for (const Node& node : graph_.nodes) {
      if (std::holds_alternative<GatherRowsOp>(node.op)) {
        KeepToTheEnd(node.inputs[0]);
      }
    }
    return std::move(result_);
  }

 private:
  int NewStorage(const Value& value, int64_t width, int64_t parts) {
    result_.storages.push_back({.form = value.form,
                                .rows = value.rows,
                                .width = width,
                                .parts = parts,
                                .first_node = static_cast<int>(graph_.nodes.size()),
                                .last_node = -1});
    return static_cast<int>(result_.storages.size()) - 1;
  }

  void Touch(ValueId id) {
    if (id == kNoValue) {
      return;
    }
    Storage& storage = result_.storages[result_.places[id].storage];
    storage.first_node = std::min(storage.first_node, node_index_);
    storage.last_node = std::max(storage.last_node, node_index_);
  }

  void KeepToTheEnd(ValueId id) {
    result_.storages[result_.places[id].storage].last_node = static_cast<int>(graph_.nodes.size());
  }

  // Values that must lie together are placed before the nodes that write them are seen.
  void PlaceTogether(const Node& node) {
    if (std::holds_alternative<SwiGluOp>(node.op)) {
      const ValueId gate = node.inputs[0];
      const ValueId up = node.inputs[1];
      if (std::holds_alternative<MatMulOp>(graph_.nodes[graph_.Producer(gate)].op)) {
        const Value& value = graph_.value(gate);
        const int storage = NewStorage(value, 2 * value.width, 1);
        result_.places[gate] = {.storage = storage};
        result_.places[up] = {.storage = storage, .column = value.width};
      }
    } else if (const auto* gather = std::get_if<AllGatherOp>(&node.op)) {
      const Value& all = graph_.value(node.outputs[0]);
      const int storage = NewStorage(all, all.width, all.parts);
      int64_t first_part = 0;
      for (int shard = 0; shard < graph_.shard.shard; ++shard) {
        first_part += gather->parts_of[shard];
      }
      result_.places[node.inputs[0]] = {.storage = storage, .first_part = first_part};
      result_.places[node.outputs[0]] = {.storage = storage};
    }
  }

  void PlaceOutputs(const Node& node) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (id == kNoValue || result_.places[id].storage >= 0) {
        continue;
      }
      const Value& value = graph_.value(id);
      if (const auto* slice = std::get_if<SliceOp>(&node.op)) {
        result_.places[id] = result_.places[node.inputs[0]];
        result_.places[id].column += slice->begin;
      } else if (WorksInPlace(node)) {
        CheckOverwritable(node.inputs[0]);
        result_.places[id] = result_.places[node.inputs[0]];
      } else if (std::holds_alternative<JoinAddOp>(node.op) && i == 0 &&
                 LastReaderIsThis(node.inputs[1])) {
        result_.places[id] = result_.places[node.inputs[1]];
      } else {
        result_.places[id] = {.storage = NewStorage(value, value.width, value.parts)};
      }
    }
  }

  static bool WorksInPlace(const Node& node) {
    const auto* norm = std::get_if<RmsNormOp>(&node.op);
    return std::holds_alternative<RopeOp>(node.op) || (norm != nullptr && norm->per_head);
  }

  bool LastReaderIsThis(ValueId id) const {
    return id != graph_.logits && graph_.Consumers(id).back() == node_index_;
  }

  // In place: nobody else reads the value, nor a slice that overlaps it.
  void CheckOverwritable(ValueId id) const {
    CHECK(id != graph_.logits && graph_.Consumers(id).size() == 1)
        << "value " << id << " is overwritten but has other readers";
    const Node& producer = graph_.nodes[graph_.Producer(id)];
    const auto* slice = std::get_if<SliceOp>(&producer.op);
    if (slice == nullptr) {
      return;
    }
    const int64_t end = slice->begin + graph_.value(id).width;
    for (const int index : graph_.Consumers(producer.inputs[0])) {
      const Node& other = graph_.nodes[index];
      if (other.outputs == producer.outputs) {
        continue;
      }
      const auto* other_slice = std::get_if<SliceOp>(&other.op);
      CHECK(other_slice != nullptr) << "value " << producer.inputs[0] << " is partly overwritten";
      const int64_t other_end = other_slice->begin + graph_.value(other.outputs[0]).width;
      CHECK(other_end <= slice->begin || end <= other_slice->begin)
          << "slices of value " << producer.inputs[0] << " overlap";
    }
  }

  const Graph& graph_;
  StorageAssignment result_;
  int node_index_ = 0;
};

}  // namespace

StorageAssignment AssignStorage(const Graph& graph) { return StorageAssigner(graph).Run(); }

}  // namespace shoal::graph
