#include "model/graph/graph.h"

#include <glog/logging.h>

#include <algorithm>

namespace shoal::graph {

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kQuery:
      return "query";
    case Role::kKey:
      return "key";
    case Role::kValue:
      return "value";
    case Role::kAttentionOut:
      return "attention_out";
    case Role::kGate:
      return "gate";
    case Role::kUp:
      return "up";
    case Role::kDown:
      return "down";
    case Role::kHead:
      return "head";
  }
  return "unknown";
}

absl::string_view OpName(const Op& op) {
  constexpr absl::string_view kNames[] = {
      "Embed",     "RmsNorm", "Quantize",  "MatMul",  "Slice",      "Rope", "KvStore",
      "Attention", "SwiGlu",  "AllGather", "JoinAdd", "GatherRows", "Send", "Receive"};
  static_assert(std::size(kNames) == std::variant_size_v<Op>);
  return kNames[op.index()];
}

ValueId Graph::AddValue(const Value& value) {
  values.push_back(value);
  return static_cast<ValueId>(values.size()) - 1;
}

int Graph::Producer(ValueId id) const {
  for (size_t i = 0; i < nodes.size(); ++i) {
    const std::vector<ValueId>& outputs = nodes[i].outputs;
    if (std::find(outputs.begin(), outputs.end(), id) != outputs.end()) {
      return static_cast<int>(i);
    }
  }
  LOG(FATAL) << "no node writes value " << id;
}

std::vector<int> Graph::Consumers(ValueId id) const {
  std::vector<int> consumers;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const std::vector<ValueId>& inputs = nodes[i].inputs;
    if (std::find(inputs.begin(), inputs.end(), id) != inputs.end()) {
      consumers.push_back(static_cast<int>(i));
    }
  }
  return consumers;
}

ConstantId Graph::FindConstant(absl::string_view name) const {
  for (size_t i = 0; i < constants.size(); ++i) {
    if (constants[i].name == name) {
      return static_cast<ConstantId>(i);
    }
  }
  return kNoConstant;
}

void Graph::Validate() const {
  std::vector<bool> written(values.size(), false);
  const auto in_range = [&](ValueId id) {
    return id >= 0 && id < static_cast<ValueId>(values.size());
  };
  for (const Node& node : nodes) {
    for (const ValueId id : node.inputs) {
      CHECK(id == kNoValue || (in_range(id) && written[id]))
          << OpName(node.op) << " reads value " << id << " before it is written";
    }
    for (const ValueId id : node.outputs) {
      if (id == kNoValue) {
        continue;
      }
      CHECK(in_range(id) && !written[id]) << OpName(node.op) << " writes value " << id << " again";
      written[id] = true;
    }
  }
  if (!stage.is_last()) {
    CHECK(logits == kNoValue) << "only the last stage has logits";
    CHECK(!nodes.empty() && std::holds_alternative<SendOp>(nodes.back().op));
    return;
  }
  CHECK(in_range(logits) && written[logits]) << "no node writes the logits";
}

}  // namespace shoal::graph
