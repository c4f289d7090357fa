#include "worker/engine/executor.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace shoal::worker {
namespace {

int64_t MonotonicNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t Aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t BlocksOf(int64_t tokens) {
  return (tokens + kernels::kPageTokens - 1) / kernels::kPageTokens;
}

bool IsOfRank(const parallel::Transport* transport, int rank, int size) {
  return size == 1 ||
         (transport != nullptr && transport->size() == size && transport->rank() == rank);
}

}  // namespace

// Fills in what this step brings and calls the backend, one overload for each op.
class Executor::StepRunner {
 public:
  StepRunner(Executor* executor, KvStore* kv, const Peers& peers)
      : executor_(*executor),
        backend_(*executor->backend_),
        device_(executor->device_),
        kv_(kv),
        peers_(peers) {}

  void set_rows(int64_t rows) { rows_ = rows; }

  absl::Status operator()(kernels::EmbedArgs& args) {
    args.tokens = device_.tokens;
    args.rows = rows_;
    backend_.Embed(args);
    return absl::OkStatus();
  }

  absl::Status operator()(kernels::RmsNormArgs& args) {
    args.rows = rows_;
    args.quantized.rows = rows_;
    backend_.RmsNorm(args);
    return absl::OkStatus();
  }

  absl::Status operator()(kernels::QuantizeArgs& args) {
    args.out.rows = rows_;
    backend_.Quantize(args);
    return absl::OkStatus();
  }

  absl::Status operator()(BoundMatMul& bound) {
    kernels::MatMulArgs args = bound.args;
    args.rows = rows_;
    args.xq.rows = rows_;
    args.root_stride = rows_ * bound.width;
    args.out += bound.first_part * args.root_stride;
    backend_.MatMul(args);
    return absl::OkStatus();
  }

  absl::Status operator()(kernels::RopeArgs& args) {
    args.rows = rows_;
    args.positions = device_.positions;
    backend_.Rope(args);
    return absl::OkStatus();
  }

  absl::Status operator()(BoundKvStore& bound) {
    bound.args.layout = executor_.layout_;
    bound.args.pages = kv_->layer(bound.layer);
    backend_.KvStore(bound.args);
    return absl::OkStatus();
  }

  absl::Status operator()(BoundAttention& bound) {
    bound.args.layout = executor_.layout_;
    bound.args.pages = kv_->layer(bound.layer);
    backend_.Attention(bound.args);
    return absl::OkStatus();
  }

  absl::Status operator()(kernels::SwiGluArgs& args) {
    args.rows = rows_;
    args.quantized.rows = rows_;
    backend_.SwiGlu(args);
    return absl::OkStatus();
  }

  absl::Status operator()(BoundAllGather& bound) {
    const int64_t part = rows_ * bound.width;
    int64_t first_part = 0;
    for (size_t shard = 0; shard < bound.parts_of.size(); ++shard) {
      bound.block_bytes[shard] = static_cast<size_t>(bound.parts_of[shard] * part) * sizeof(float);
      if (static_cast<int>(shard) < peers_.shards->rank()) {
        first_part += bound.parts_of[shard];
      }
    }
    return Exchange([&] {
      return peers_.shards->AllGatherV(bound.parts + first_part * part, bound.block_bytes,
                                       bound.parts);
    });
  }

  absl::Status operator()(BoundSend& bound) {
    return Exchange([&] {
      return peers_.stages->Send(peers_.stages->rank() + 1, bound.x, RowBytes(bound.width));
    });
  }

  absl::Status operator()(BoundReceive& bound) {
    return Exchange([&] {
      return peers_.stages->Receive(peers_.stages->rank() - 1, bound.out, RowBytes(bound.width));
    });
  }

  absl::Status operator()(BoundJoinAdd& bound) {
    bound.args.rows = rows_;
    bound.args.quantized.rows = rows_;
    for (size_t part = 0; part < bound.parts.size(); ++part) {
      bound.parts[part] = bound.first_part + static_cast<int64_t>(part) * rows_ * bound.args.width;
    }
    backend_.JoinAdd(bound.args);
    return absl::OkStatus();
  }

  absl::Status operator()(kernels::GatherRowsArgs& args) {
    args.indices = device_.output_rows;
    args.rows = rows_;
    backend_.GatherRows(args);
    return absl::OkStatus();
  }

 private:
  size_t RowBytes(int64_t width) const {
    return static_cast<size_t>(rows_ * width) * sizeof(float);
  }

  // Lets peers see what was computed, and counts the time with them.
  template <typename Call>
  absl::Status Exchange(const Call& call) {
    backend_.Synchronize();
    const int64_t begin = executor_.now_ns_();
    absl::Status status = call();
    executor_.wait_ns_ += executor_.now_ns_() - begin;
    return status;
  }

  Executor& executor_;
  kernels::Backend& backend_;
  const DeviceInput& device_;
  KvStore* const kv_;
  const Peers peers_;
  int64_t rows_ = 0;
};

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const model::Weights& weights,
                                                           graph::Program program,
                                                           kernels::Backend* backend,
                                                           const Options& options) {
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<BoundProgram> bound,
      BoundProgram::Create(weights, std::move(program), backend, options.progress));
  auto executor = std::unique_ptr<Executor>(new Executor(std::move(bound), backend, options));
  SHOAL_RETURN_IF_ERROR(executor->AllocateInput());
  return executor;
}

Executor::Executor(std::unique_ptr<BoundProgram> bound, kernels::Backend* backend,
                   const Options& options)
    : bound_(std::move(bound)),
      backend_(backend),
      max_batch_seqs_(options.max_batch_seqs),
      max_blocks_per_seq_(BlocksOf(bound_->program().limits.max_seq_len)),
      now_ns_(options.now_ns == nullptr ? MonotonicNs : options.now_ns) {
  const std::vector<graph::Instruction>& instructions = program().instructions;
  while (first_output_step_ < instructions.size() &&
         instructions[first_output_step_].rows == graph::RowSet::kTokens) {
    ++first_output_step_;
  }
}

absl::Status Executor::AllocateInput() {
  const graph::ProgramLimits& limits = program().limits;
  const int64_t num_ints[] = {limits.max_batch_tokens, limits.max_batch_tokens, max_batch_seqs_ + 1,
                              limits.max_output_rows, max_batch_seqs_ * max_blocks_per_seq_};
  int32_t** const places[] = {&device_.tokens, &device_.positions, &device_.seq_row_begin,
                              &device_.output_rows, &device_.blocks};
  const int64_t table_bytes = Aligned(max_batch_seqs_ * int64_t{sizeof(int32_t*)});
  int64_t bytes = table_bytes;
  for (const int64_t count : num_ints) {
    bytes += Aligned(count * int64_t{sizeof(int32_t)});
  }
  SHOAL_ASSIGN_OR_RETURN(input_memory_,
                         backend_->Allocate(static_cast<size_t>(bytes), "a step's input"));
  char* next = static_cast<char*>(input_memory_->data());
  device_.tables = reinterpret_cast<const int32_t**>(next);
  next += table_bytes;
  for (size_t i = 0; i < std::size(num_ints); ++i) {
    *places[i] = reinterpret_cast<int32_t*>(next);
    next += Aligned(num_ints[i] * int64_t{sizeof(int32_t)});
  }
  std::vector<const int32_t*> tables;
  for (int64_t seq = 0; seq < max_batch_seqs_; ++seq) {
    tables.push_back(device_.blocks + seq * max_blocks_per_seq_);
  }
  backend_->Upload(device_.tables, tables.data(), tables.size() * sizeof(tables[0]));
  return absl::OkStatus();
}

// The edge has validated the plan; this guards memory against our own bugs.
void Executor::CheckInput(const StepInput& input) const {
  const graph::ProgramLimits& limits = program().limits;
  const int64_t rows = static_cast<int64_t>(input.tokens.size());
  CHECK_EQ(rows, input.layout.rows);
  CHECK_LE(rows, limits.max_batch_tokens);
  CHECK_LE(input.layout.num_seqs, max_batch_seqs_);
  CHECK_LE(static_cast<int64_t>(input.output_rows.size()), limits.max_output_rows);
  for (int64_t row = 0; row < rows; ++row) {
    CHECK(input.layout.positions[row] >= 0 && input.layout.positions[row] < limits.max_seq_len)
        << "position " << input.layout.positions[row];
  }
}

void Executor::UploadInput(const StepInput& input) {
  const kernels::StepLayout& layout = input.layout;
  const size_t row_bytes = static_cast<size_t>(layout.rows) * sizeof(int32_t);
  backend_->Upload(device_.tokens, input.tokens.data(), row_bytes);
  backend_->Upload(device_.positions, layout.positions, row_bytes);
  backend_->Upload(device_.seq_row_begin, layout.seq_row_begin,
                   static_cast<size_t>(layout.num_seqs + 1) * sizeof(int32_t));
  for (int32_t seq = 0; seq < layout.num_seqs; ++seq) {
    const int32_t end = layout.seq_row_begin[seq + 1];
    if (end == layout.seq_row_begin[seq]) {
      continue;
    }
    const int64_t num_blocks = BlocksOf(layout.positions[end - 1] + 1);
    backend_->Upload(device_.blocks + seq * max_blocks_per_seq_, layout.block_tables[seq],
                     static_cast<size_t>(num_blocks) * sizeof(int32_t));
  }
  layout_ = {.rows = layout.rows,
             .num_seqs = layout.num_seqs,
             .seq_row_begin = device_.seq_row_begin,
             .positions = device_.positions,
             .block_tables = device_.tables};
}

absl::Status Executor::RunSteps(size_t begin, size_t end, KvStore* kv, const Peers& peers) {
  StepRunner runner(this, kv, peers);
  absl::Status status;
  const bool is_recorded = recorder_ != nullptr && recorder_->is_recording();
  int64_t op_begin_ns = is_recorded ? base::UnixNanos() : 0;
  for (size_t i = begin; i < end && status.ok(); ++i) {
    current_.store(static_cast<int32_t>(i), std::memory_order_relaxed);
    const bool on_outputs = i >= first_output_step_;
    runner.set_rows(on_outputs ? num_output_rows_ : layout_.rows);
    status = std::visit(runner, bound_->steps()[i]);
    if (is_recorded) {
      const int64_t op_end_ns = base::UnixNanos();
      recorder_->Add(first_name_ + static_cast<uint32_t>(i), op_begin_ns, op_end_ns);
      op_begin_ns = op_end_ns;
    }
  }
  backend_->Synchronize();
  current_.store(-1, std::memory_order_relaxed);
  return status;
}

absl::Status Executor::Run(const StepInput& input, KvStore& kv, const Peers& peers) {
  const graph::ShardInfo& shard = program().shard;
  const graph::StageInfo& stage = program().stage;
  CHECK(IsOfRank(peers.shards, shard.shard, shard.tp)) << "shard " << shard.shard;
  CHECK(IsOfRank(peers.stages, stage.stage, stage.pp)) << "stage " << stage.stage;
  CheckInput(input);
  wait_ns_ = 0;
  logits_ = {};
  num_output_rows_ = 0;
  layout_.rows = 0;
  if (input.tokens.empty()) {
    return absl::OkStatus();
  }
  UploadInput(input);
  SHOAL_RETURN_IF_ERROR(RunSteps(0, first_output_step_, &kv, peers));
  ComputeLogits(input.output_rows);
  return absl::OkStatus();
}

void Executor::ComputeLogits(absl::Span<const int32_t> output_rows) {
  CHECK_LE(static_cast<int64_t>(output_rows.size()), program().limits.max_output_rows);
  for (const int32_t row : output_rows) {
    CHECK(row >= 0 && row < layout_.rows) << "output row " << row;
  }
  num_output_rows_ = static_cast<int64_t>(output_rows.size());
  if (num_output_rows_ > 0) {
    backend_->Upload(device_.output_rows, output_rows.data(),
                     output_rows.size() * sizeof(output_rows[0]));
    const absl::Status status = RunSteps(first_output_step_, bound_->steps().size(), nullptr, {});
    CHECK(status.ok()) << status;  // only collectives fail
  }
  logits_ = {bound_->logits(), static_cast<size_t>(num_output_rows_ * logits_width())};
}

int64_t Executor::FirstNonfiniteRow() const {
  constexpr uint32_t kExponent = 0x7f800000;
  const int64_t width = logits_width();
  for (int64_t row = 0; row < num_output_rows_; ++row) {
    const float* logits = logits_.data() + row * width;
    uint32_t bad = 0;
    for (int64_t i = 0; i < width; ++i) {
      uint32_t bits;
      std::memcpy(&bits, logits + i, sizeof(bits));
      bad |= static_cast<uint32_t>((bits & kExponent) == kExponent);
    }
    if (bad != 0) {
      return row;
    }
  }
  return -1;
}

const char* Executor::current_op() const {
  const int32_t index = current_.load(std::memory_order_relaxed);
  return index < 0 ? "" : program().instructions[index].name.c_str();
}

}  // namespace shoal::worker
