#include "model/graph/lower.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/graph/assign_storage.h"
#include "model/graph/plan_buffers.h"

namespace shoal::graph {
namespace {

class Lowering {
 public:
  Lowering(const Graph& graph, const ProgramLimits& limits)
      : graph_(graph), limits_(limits), assignment_(AssignStorage(graph)) {}

  Program Run() {
    program_.architecture = graph_.architecture;
    program_.shard = graph_.shard;
    program_.stage = graph_.stage;
    program_.limits = limits_;
    program_.num_layers = graph_.num_layers;
    program_.num_kv_heads = graph_.num_kv_heads;
    program_.head_dim = graph_.head_dim;
    program_.constants = graph_.constants;
    PlanMemory();
    for (const Node& node : graph_.nodes) {
      std::visit([&](const auto& op) { Emit(node, op); }, node.op);
    }
    CheckOutputsAreLast();
    if (graph_.logits != kNoValue) {
      program_.logits = Rows(graph_.logits);
      const auto& head = std::get<MatMulOp>(graph_.nodes[graph_.Producer(graph_.logits)].op);
      program_.vocab_begin = head.segments[0].row_begin;
    }
    return std::move(program_);
  }

 private:
  // What works on output rows must be a tail without collectives: it may run again for other rows.
  void CheckOutputsAreLast() const {
    bool on_outputs = false;
    for (const Instruction& instruction : program_.instructions) {
      CHECK(!on_outputs || instruction.rows == RowSet::kOutputs) << instruction.name;
      on_outputs = instruction.rows == RowSet::kOutputs;
      CHECK(!on_outputs || !std::holds_alternative<AllGatherStep>(instruction.step));
    }
  }

  int64_t MaxRows(RowSet rows) const {
    return rows == RowSet::kTokens ? limits_.max_batch_tokens : limits_.max_output_rows;
  }

  int64_t BytesOf(const Storage& storage) const {
    const int64_t rows = MaxRows(storage.rows);
    switch (storage.form) {
      case Form::kFloat:
      case Form::kPartials:
        return storage.parts * rows * storage.width * int64_t{sizeof(float)};
      case Form::kQuantized:
        return ScaleOffset(storage) + 2 * ScaleBytes(storage);
      case Form::kKv:
        return 0;
    }
    LOG(FATAL) << "unknown form";
  }

  // q | scale | sum, each aligned to 64 bytes.
  int64_t ScaleOffset(const Storage& storage) const {
    return Aligned(MaxRows(storage.rows) * storage.width);
  }
  int64_t ScaleBytes(const Storage& storage) const {
    static_assert(sizeof(float) == sizeof(int32_t));
    return Aligned(MaxRows(storage.rows) * storage.width / kernels::kQuantBlock *
                   int64_t{sizeof(float)});
  }
  static int64_t Aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  void PlanMemory() {
    std::vector<BufferRequest> requests;
    for (const Storage& storage : assignment_.storages) {
      requests.push_back({BytesOf(storage), storage.first_node, storage.last_node});
      program_.unplanned_bytes += Aligned(BytesOf(storage));
    }
    BufferPlan plan = PlanBuffers(requests);
    offsets_ = std::move(plan.offsets);
    program_.workspace_bytes = plan.bytes;
  }

  RowsRef Rows(ValueId id) const {
    if (id == kNoValue) {
      return {};
    }
    const Place& place = assignment_.places[id];
    const Storage& storage = assignment_.storages[place.storage];
    return {.offset = offsets_[place.storage] + place.column * int64_t{sizeof(float)},
            .stride = storage.width,
            .width = graph_.value(id).width,
            .first_part = place.first_part};
  }

  QuantizedRef Quantized(ValueId id) const {
    if (id == kNoValue) {
      return {};
    }
    const Place& place = assignment_.places[id];
    const Storage& storage = assignment_.storages[place.storage];
    const int64_t offset = offsets_[place.storage];
    const int64_t scale = offset + ScaleOffset(storage);
    return {
        .q = offset, .scale = scale, .sum = scale + ScaleBytes(storage), .width = storage.width};
  }

  void Add(const Node& node, Step step, absl::string_view detail = "") {
    // Any of its values says for which rows it runs; a Send has but an input.
    ValueId any = kNoValue;
    for (const std::vector<ValueId>* values : {&node.outputs, &node.inputs}) {
      for (const ValueId id : *values) {
        any = any == kNoValue ? id : any;
      }
    }
    program_.instructions.push_back(
        {.step = std::move(step),
         .rows = graph_.value(any).rows,
         .layer = node.layer,
         .name = absl::StrCat(node.layer < 0 ? "" : absl::StrCat("layer ", node.layer, " "),
                              OpName(node.op), detail.empty() ? "" : " ", detail)});
  }

  void Emit(const Node& node, const EmbedOp& op) {
    Add(node, EmbedStep{.table = op.table.tensor, .out = Rows(node.outputs[0])});
  }

  void Emit(const Node& node, const RmsNormOp& op) {
    CHECK_NE(op.weight.constant, kNoConstant) << "FoldConstants has not run";
    Add(node, RmsNormStep{.x = Rows(node.inputs[0]),
                          .weight = op.weight.constant,
                          .eps = op.eps,
                          .groups = op.groups,
                          .out = Rows(node.outputs[0]),
                          .quantized = Quantized(node.outputs[1])});
  }

  void Emit(const Node& node, const QuantizeOp&) {
    Add(node, QuantizeStep{.x = Rows(node.inputs[0]), .out = Quantized(node.outputs[0])});
  }

  void Emit(const Node& node, const MatMulOp& op) {
    if (graph_.value(node.outputs[0]).width == 0) {
      return;  // this shard holds no part of the vocabulary
    }
    CHECK(op.bias.parts.empty()) << "FoldConstants has not run";
    MatMulStep step{.x = Rows(node.inputs[0]),
                    .xq = Quantized(node.inputs[1]),
                    .bias = op.bias.constant,
                    .split = op.split,
                    .out = Rows(node.outputs[0])};
    for (const WeightUse& weight : op.segments) {
      CHECK(kernels::IsQuantized(weight.type) ? step.xq.present() : step.x.present())
          << weight.tensor << ": QuantizeActivations has not run";
      step.segments.push_back(static_cast<int32_t>(program_.matrices.size()));
      program_.matrices.push_back(weight);
    }
    Add(node, std::move(step), absl::StrJoin(op.roles, "+", [](std::string* out, Role role) {
          absl::StrAppend(out, RoleName(role));
        }));
  }

  void Emit(const Node&, const SliceOp&) {}  // a view

  void Emit(const Node& node, const RopeOp& op) {
    CHECK_NE(op.table, kNoConstant) << "FoldConstants has not run";
    Add(node, RopeStep{.x = Rows(node.outputs[0]),
                       .heads = op.heads,
                       .head_dim = op.head_dim,
                       .rope_dim = op.rope_dim,
                       .style = op.style,
                       .table = op.table});
  }

  void Emit(const Node& node, const KvStoreOp&) {
    const KvStoreStep step{.k = Rows(node.inputs[0]), .v = Rows(node.inputs[1])};
    CHECK_EQ(step.k.stride, step.v.stride);
    Add(node, step);
  }

  void Emit(const Node& node, const AttentionOp& op) {
    Add(node, AttentionStep{.q = Rows(node.inputs[0]),
                            .kv_head_of = op.kv_head_of,
                            .scale = op.scale,
                            .out = Rows(node.outputs[0])});
  }

  void Emit(const Node& node, const SwiGluOp&) {
    const RowsRef gate = Rows(node.inputs[0]);
    const RowsRef up = Rows(node.inputs[1]);
    CHECK_EQ(gate.offset + gate.width * int64_t{sizeof(float)}, up.offset)
        << "up does not follow gate";
    Add(node, SwiGluStep{.gate_up = gate,
                         .out = Rows(node.outputs[0]),
                         .quantized = Quantized(node.outputs[1])});
  }

  void Emit(const Node& node, const AllGatherOp& op) {
    Add(node, AllGatherStep{.parts = Rows(node.outputs[0]), .parts_of = op.parts_of});
  }

  void Emit(const Node& node, const JoinAddOp& op) {
    CHECK(op.norm_weight.parts.empty()) << "FoldConstants has not run";
    Add(node, JoinAddStep{.parts = Rows(node.inputs[0]),
                          .num_parts = graph_.value(node.inputs[0]).parts,
                          .steps = op.steps,
                          .residual = Rows(node.inputs[1]),
                          .out = Rows(node.outputs[0]),
                          .norm_weight = op.norm_weight.constant,
                          .eps = op.eps,
                          .normed = Rows(node.outputs[1]),
                          .quantized = Quantized(node.outputs[2])});
  }

  void Emit(const Node& node, const GatherRowsOp&) {
    Add(node, GatherRowsStep{.x = Rows(node.inputs[0]), .out = Rows(node.outputs[0])});
  }

  void Emit(const Node& node, const SendOp&) { Add(node, SendStep{.x = Rows(node.inputs[0])}); }

  void Emit(const Node& node, const ReceiveOp&) {
    Add(node, ReceiveStep{.out = Rows(node.outputs[0])});
  }

  const Graph& graph_;
  const ProgramLimits limits_;
  const StorageAssignment assignment_;
  std::vector<int64_t> offsets_;  // of the storages
  Program program_;
};

}  // namespace

int64_t Program::ConstantBytes() const {
  int64_t bytes = 0;
  for (const Constant& constant : constants) {
    bytes += static_cast<int64_t>(constant.values.size() * sizeof(float));
  }
  return bytes;
}

Program Lower(const Graph& graph, const ProgramLimits& limits) {
  CHECK(graph.sharded) << "ShardTensorParallel has not run";
  graph.Validate();
  return Lowering(graph, limits).Run();
}

}  // namespace shoal::graph
