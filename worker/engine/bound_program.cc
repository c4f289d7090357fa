#include "worker/engine/bound_program.h"

#include <glog/logging.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace shoal::worker {
namespace {

kernels::WeightSlice SliceOf(const model::WeightRef& ref, const graph::WeightUse& use) {
  return {.type = ref.type,
          .data = ref.data,
          .row_bytes = ref.row_bytes,
          .cols = ref.cols,
          .row_begin = use.row_begin,
          .row_end = use.row_end,
          .col_begin = use.col_begin,
          .col_end = use.col_end};
}

// Bytes of the file that a use reads.
int64_t FileBytes(const model::WeightRef& ref, const graph::WeightUse& use) {
  return use.rows() * (ref.row_bytes * use.cols() / ref.cols);
}

absl::Status WithContext(const absl::Status& status, absl::string_view context) {
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<kernels::Buffer>> UploadBytes(const void* data, size_t bytes,
                                                             absl::string_view what,
                                                             kernels::Backend* backend) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Buffer> buffer, backend->Allocate(bytes, what));
  backend->Upload(buffer->data(), data, bytes);
  return buffer;
}

}  // namespace

// Turns offsets into pointers, one overload for each instruction.
class BoundProgram::Binder {
 public:
  Binder(const model::Weights& weights, kernels::Backend* backend, BoundProgram* bound)
      : weights_(weights), backend_(backend), bound_(bound) {}

  absl::Status Run() {
    for (const graph::Instruction& instruction : bound_->program_.instructions) {
      layer_ = instruction.layer - static_cast<int32_t>(bound_->program_.stage.first_layer);
      SHOAL_ASSIGN_OR_RETURN(
          BoundStep step,
          std::visit([&](const auto& s) -> absl::StatusOr<BoundStep> { return Bind(s); },
                     instruction.step));
      bound_->steps_.push_back(std::move(step));
    }
    // Only now do the steps stay where they are.
    for (BoundStep& step : bound_->steps_) {
      AimAtOwnArrays(&step);
    }
    bound_->logits_ = At<float>(bound_->program_.logits.offset);
    return absl::OkStatus();
  }

 private:
  template <typename T>
  T* At(int64_t offset) const {
    return offset < 0
               ? nullptr
               : reinterpret_cast<T*>(static_cast<char*>(bound_->workspace_->data()) + offset);
  }
  float* At(const graph::RowsRef& ref) const { return At<float>(ref.offset); }

  // Rows are the step's.
  kernels::QuantizedRows Quantized(const graph::QuantizedRef& ref) const {
    return {.q = At<int8_t>(ref.q),
            .scale = At<float>(ref.scale),
            .sum = At<int32_t>(ref.sum),
            .rows = 0,
            .width = ref.width};
  }

  const float* Constant(graph::ConstantId id) const {
    return id == graph::kNoConstant ? nullptr
                                    : static_cast<const float*>(bound_->constants_[id]->data());
  }

  absl::StatusOr<BoundStep> Bind(const graph::EmbedStep& step) const {
    const model::WeightRef& table = weights_.Get(step.table);
    return kernels::EmbedArgs{.table = bound_->embeddings_.at(step.table)->data(),
                              .type = table.type,
                              .row_bytes = table.row_bytes,
                              .width = table.cols,
                              .out = At(step.out)};
  }

  absl::StatusOr<BoundStep> Bind(const graph::RmsNormStep& step) const {
    return kernels::RmsNormArgs{.x = At(step.x),
                                .x_stride = step.x.stride,
                                .weight = Constant(step.weight),
                                .eps = step.eps,
                                .groups = step.groups,
                                .width = step.x.width / step.groups,
                                .out = At(step.out),
                                .out_stride = step.out.stride,
                                .quantized = Quantized(step.quantized)};
  }

  absl::StatusOr<BoundStep> Bind(const graph::QuantizeStep& step) const {
    return kernels::QuantizeArgs{
        .x = At(step.x), .x_stride = step.x.stride, .out = Quantized(step.out)};
  }

  absl::StatusOr<BoundStep> Bind(const graph::MatMulStep& step) const {
    BoundMatMul bound;
    for (const int32_t index : step.segments) {
      bound.segments.push_back(bound_->matrices_[index]->weight());
    }
    bound.args = {.num_segments = static_cast<int32_t>(bound.segments.size()),
                  .xq = Quantized(step.xq),
                  .x = At(step.x),
                  .x_stride = step.x.stride,
                  .split = step.split,
                  .bias = Constant(step.bias),
                  .out = At(step.out),
                  .out_stride = step.out.stride};
    bound.first_part = step.out.first_part;
    bound.width = step.out.width;
    return bound;
  }

  absl::StatusOr<BoundStep> Bind(const graph::RopeStep& step) const {
    return kernels::RopeArgs{.x = At(step.x),
                             .x_stride = step.x.stride,
                             .heads = static_cast<int32_t>(step.heads),
                             .head_dim = static_cast<int32_t>(step.head_dim),
                             .rope_dim = static_cast<int32_t>(step.rope_dim),
                             .style = step.style,
                             .table = Constant(step.table)};
  }

  absl::StatusOr<BoundStep> Bind(const graph::KvStoreStep& step) const {
    BoundKvStore bound;
    bound.args.k = At(step.k);
    bound.args.v = At(step.v);
    bound.args.stride = step.k.stride;
    bound.layer = layer_;
    return bound;
  }

  absl::StatusOr<BoundStep> Bind(const graph::AttentionStep& step) {
    SHOAL_ASSIGN_OR_RETURN(
        std::unique_ptr<kernels::Buffer> heads,
        UploadBytes(step.kv_head_of.data(), step.kv_head_of.size() * sizeof(int32_t),
                    "a map of heads", backend_));
    const auto* kv_head_of = static_cast<const int32_t*>(heads->data());
    bound_->head_maps_.push_back(std::move(heads));
    BoundAttention bound;
    bound.args.q = At(step.q);
    bound.args.q_stride = step.q.stride;
    bound.args.heads = static_cast<int32_t>(step.kv_head_of.size());
    bound.args.kv_head_of = kv_head_of;
    bound.args.scale = step.scale;
    bound.args.out = At(step.out);
    bound.args.out_stride = step.out.stride;
    bound.layer = layer_;
    return bound;
  }

  absl::StatusOr<BoundStep> Bind(const graph::SwiGluStep& step) const {
    return kernels::SwiGluArgs{.gate_up = At(step.gate_up),
                               .stride = step.gate_up.stride,
                               .width = step.gate_up.width,
                               .out = At(step.out),
                               .quantized = Quantized(step.quantized)};
  }

  absl::StatusOr<BoundStep> Bind(const graph::AllGatherStep& step) const {
    return BoundAllGather{.parts = At(step.parts),
                          .width = step.parts.width,
                          .parts_of = step.parts_of,
                          .block_bytes = std::vector<size_t>(step.parts_of.size())};
  }

  absl::StatusOr<BoundStep> Bind(const graph::JoinAddStep& step) const {
    BoundJoinAdd bound;
    bound.first_part = At(step.parts);
    bound.parts.resize(step.num_parts);
    bound.steps = step.steps;
    bound.args = {.num_parts = static_cast<int32_t>(step.num_parts),
                  .num_steps = static_cast<int32_t>(step.steps.size()),
                  .residual = At(step.residual),
                  .out = At(step.out),
                  .width = step.out.width,
                  .norm_weight = Constant(step.norm_weight),
                  .eps = step.eps,
                  .normed = At(step.normed),
                  .quantized = Quantized(step.quantized)};
    return bound;
  }

  absl::StatusOr<BoundStep> Bind(const graph::GatherRowsStep& step) const {
    return kernels::GatherRowsArgs{.x = At(step.x), .width = step.x.width, .out = At(step.out)};
  }

  absl::StatusOr<BoundStep> Bind(const graph::SendStep& step) const {
    CHECK_EQ(step.x.stride, step.x.width);
    return BoundSend{.x = At(step.x), .width = step.x.width};
  }

  absl::StatusOr<BoundStep> Bind(const graph::ReceiveStep& step) const {
    CHECK_EQ(step.out.stride, step.out.width);
    return BoundReceive{.out = At(step.out), .width = step.out.width};
  }

  static void AimAtOwnArrays(BoundStep* step) {
    if (auto* matmul = std::get_if<BoundMatMul>(step)) {
      matmul->args.segments = matmul->segments.data();
    } else if (auto* add = std::get_if<BoundJoinAdd>(step)) {
      add->args.parts = add->parts.data();
      add->args.steps = add->steps.data();
    }
  }

  const model::Weights& weights_;
  kernels::Backend* const backend_;
  BoundProgram* const bound_;
  int32_t layer_ = -1;  // of the KV store
};

absl::Status BoundProgram::Pack(const model::Weights& weights, kernels::Backend* backend,
                                const LoadProgress& progress) {
  int64_t total = 0;
  for (const graph::WeightUse& use : program_.matrices) {
    total += FileBytes(weights.Get(use.tensor), use);
  }
  int64_t done = 0;
  for (const graph::WeightUse& use : program_.matrices) {
    const model::WeightRef& ref = weights.Get(use.tensor);
    SHOAL_RETURN_IF_ERROR(model::CheckFinite(ref, use.row_begin, use.row_end));
    absl::StatusOr<std::unique_ptr<kernels::PackedMatrix>> packed =
        backend->Pack(SliceOf(ref, use));
    if (!packed.ok()) {
      return WithContext(packed.status(), absl::StrCat("tensor ", use.tensor));
    }
    CHECK((*packed)->rows() == use.rows() && (*packed)->cols() == use.cols()) << use.tensor;
    weight_bytes_ += static_cast<int64_t>((*packed)->size_bytes());
    matrices_.push_back(*std::move(packed));
    done += FileBytes(ref, use);
    if (progress) {
      progress(done, total);
    }
  }
  return absl::OkStatus();
}

absl::Status BoundProgram::UploadConstants(kernels::Backend* backend) {
  for (const graph::Constant& constant : program_.constants) {
    SHOAL_ASSIGN_OR_RETURN(
        std::unique_ptr<kernels::Buffer> buffer,
        UploadBytes(constant.values.data(), constant.values.size() * sizeof(float), constant.name,
                    backend));
    constants_.push_back(std::move(buffer));
  }
  return absl::OkStatus();
}

absl::Status BoundProgram::UploadEmbeddings(const model::Weights& weights,
                                            kernels::Backend* backend) {
  for (const graph::Instruction& instruction : program_.instructions) {
    const auto* embed = std::get_if<graph::EmbedStep>(&instruction.step);
    if (embed == nullptr || embeddings_.contains(embed->table)) continue;
    const model::WeightRef& table = weights.Get(embed->table);
    const size_t bytes = static_cast<size_t>(table.rows * table.row_bytes);
    SHOAL_ASSIGN_OR_RETURN(embeddings_[embed->table],
                           UploadBytes(table.data, bytes, table.name, backend));
    weight_bytes_ += static_cast<int64_t>(bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BoundProgram>> BoundProgram::Create(const model::Weights& weights,
                                                                   graph::Program program,
                                                                   kernels::Backend* backend,
                                                                   const LoadProgress& progress) {
  auto bound = std::unique_ptr<BoundProgram>(new BoundProgram(std::move(program)));
  SHOAL_ASSIGN_OR_RETURN(
      bound->workspace_,
      backend->Allocate(static_cast<size_t>(std::max<int64_t>(bound->program_.workspace_bytes, 64)),
                        "the workspace"));
  SHOAL_RETURN_IF_ERROR(bound->UploadConstants(backend));
  SHOAL_RETURN_IF_ERROR(bound->UploadEmbeddings(weights, backend));
  SHOAL_RETURN_IF_ERROR(bound->Pack(weights, backend, progress));
  SHOAL_RETURN_IF_ERROR(Binder(weights, backend, bound.get()).Run());
  return bound;
}

}  // namespace shoal::worker
