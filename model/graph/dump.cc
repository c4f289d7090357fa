#include "model/graph/dump.h"

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "model/graph/op_text.h"

namespace shoal::graph {
namespace {

// Numbers values by first appearance, so that dumps do not depend on what passes have dropped.
class ValueNames {
 public:
  explicit ValueNames(const Graph& graph) : graph_(graph) {}

  std::string NameOf(ValueId id) {
    if (id == kNoValue) {
      return "_";
    }
    const int number = static_cast<int>(numbers_.size());
    return absl::StrCat("%", numbers_.emplace(id, number).first->second);
  }

  std::string Typed(ValueId id) {
    return id == kNoValue ? "_" : absl::StrCat(NameOf(id), ": ", ValueText(graph_.value(id)));
  }

 private:
  const Graph& graph_;
  absl::flat_hash_map<ValueId, int> numbers_;
};

// Trailing results that nobody wants are not shown.
std::string Results(const std::vector<ValueId>& outputs, ValueNames* names) {
  size_t count = outputs.size();
  while (count > 1 && outputs[count - 1] == kNoValue) {
    --count;
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < count; ++i) {
    texts.push_back(names->Typed(outputs[i]));
  }
  return absl::StrJoin(texts, ", ");
}

std::string Inputs(const std::vector<ValueId>& inputs, ValueNames* names) {
  return absl::StrJoin(
      inputs, ", ", [&](std::string* out, ValueId id) { absl::StrAppend(out, names->NameOf(id)); });
}

std::string ShardText(const ShardInfo& shard, const StageInfo& stage, int64_t num_layers) {
  std::string text = absl::StrCat("tp ", shard.tp, " shard ", shard.shard);
  if (stage.pp > 1) {
    absl::StrAppend(&text, ", pp ", stage.pp, " stage ", stage.stage, ": layers ",
                    stage.first_layer, " to ", stage.first_layer + num_layers - 1);
  }
  return text;
}

std::string DotQuoted(const std::string& text) {
  return absl::StrCat(
      "\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"");
}

// What a node looks like in a drawing: the op, then its details.
std::string DotLabel(const std::string& name, const std::string& details) {
  return DotQuoted(details.empty() ? name : absl::StrCat(name, "\n", details));
}

}  // namespace

std::string ToText(const Graph& graph) {
  ValueNames names(graph);
  std::string text = absl::StrCat(
      "graph ", graph.architecture, graph.sharded ? " " : "",
      graph.sharded ? ShardText(graph.shard, graph.stage, graph.num_layers) : "", "\n");
  int32_t layer = -1;
  for (const Node& node : graph.nodes) {
    if (node.layer != layer) {
      layer = node.layer;
      absl::StrAppend(
          &text, layer < 0 ? "  -- outside layers\n" : absl::StrCat("  -- layer ", layer, "\n"));
    }
    const std::string inputs = Inputs(node.inputs, &names);
    const std::string details = OpDetails(node.op, graph.constants);
    const std::string results = Results(node.outputs, &names);
    absl::StrAppend(&text, "  ", results, results.empty() ? "" : " = ", OpName(node.op), "(",
                    inputs, inputs.empty() || details.empty() ? "" : "; ", details, ")\n");
  }
  if (graph.logits != kNoValue) {
    absl::StrAppend(&text, "  return ", names.NameOf(graph.logits), "\n");
  }
  return text;
}

std::string ToDot(const Graph& graph) {
  ValueNames names(graph);
  std::string dot = absl::StrCat("digraph ", DotQuoted(graph.architecture),
                                 " {\n  node [shape=box, fontname=monospace];\n");
  absl::flat_hash_map<ValueId, size_t> producer;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    absl::StrAppend(&dot, "  n", i, " [label=",
                    DotLabel(std::string(OpName(node.op)), OpDetails(node.op, graph.constants)),
                    "];\n");
    for (const ValueId id : node.inputs) {
      if (id != kNoValue) {
        absl::StrAppend(&dot, "  n", producer[id], " -> n", i,
                        " [label=", DotQuoted(names.Typed(id)), "];\n");
      }
    }
    for (const ValueId id : node.outputs) {
      producer[id] = i;
    }
  }
  if (graph.logits != kNoValue) {
    absl::StrAppend(&dot, "  logits [shape=plaintext];\n  n", producer[graph.logits],
                    " -> logits [label=", DotQuoted(names.Typed(graph.logits)), "];\n");
  }
  absl::StrAppend(&dot, "}\n");
  return dot;
}

std::string ToText(const Program& program) {
  std::string text = absl::StrCat(
      "program ", program.architecture, " ",
      ShardText(program.shard, program.stage, program.num_layers), "\n  max_batch_tokens ",
      program.limits.max_batch_tokens, ", max_output_rows ", program.limits.max_output_rows,
      ", max_seq_len ", program.limits.max_seq_len, "\n  workspace ", program.workspace_bytes,
      " bytes (", program.unplanned_bytes, " without sharing), constants ", program.ConstantBytes(),
      " bytes, ", program.matrices.size(), " matrices\n");
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    absl::StrAppend(&text, "  ", i, ": ", instruction.name, "(",
                    StepDetails(instruction.step, program), ")\n");
  }
  return text;
}

std::string ToDot(const Program& program) {
  std::string dot = absl::StrCat("digraph ", DotQuoted(program.architecture),
                                 " {\n  node [shape=box, fontname=monospace];\n");
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    absl::StrAppend(&dot, "  n", i,
                    " [label=", DotLabel(instruction.name, StepDetails(instruction.step, program)),
                    "];\n");
    if (i > 0) {
      absl::StrAppend(&dot, "  n", i - 1, " -> n", i, ";\n");
    }
  }
  absl::StrAppend(&dot, "}\n");
  return dot;
}

}  // namespace shoal::graph
