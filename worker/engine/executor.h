#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/thread/span_recorder.h"
#include "kernels/backend.h"
#include "model/graph/program.h"
#include "model/weights.h"
#include "parallel/transport.h"
#include "worker/engine/bound_program.h"
#include "worker/engine/kv_store.h"

namespace shoal::worker {

// One step: the rows of all its sequences. Borrowed for the length of a call; host memory.
struct StepInput {
  absl::Span<const int32_t> tokens;       // [rows], each < the model's vocabulary
  kernels::StepLayout layout;             // layout.rows == tokens.size(); pages of the KV store
  absl::Span<const int32_t> output_rows;  // rows whose logits are wanted, in any order
};

// The transports of a rank. Borrowed.
struct Peers {
  parallel::Transport* shards = nullptr;  // ranks of its stage; may be null when there is one
  parallel::Transport* stages = nullptr;  // its shard in every stage; likewise
};

// Runs a Program step after step: all memory is there from the start, a step allocates nothing.
// Thread: one (the rank's loop), except current_op().
class Executor {
 public:
  struct Options {
    int64_t max_batch_seqs = 64;
    LoadProgress progress = nullptr;
    int64_t (*now_ns)() = nullptr;  // for wait_ns(); null: a monotonic clock
  };

  // Errors: those of BoundProgram::Create. The backend must outlive the executor; nothing of
  // `weights` is read after this.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const model::Weights& weights,
                                                          graph::Program program,
                                                          kernels::Backend* backend,
                                                          const Options& options);

  // Stores the step's keys and values and computes the logits of its output rows, if this is the
  // last stage. Errors are the transports' alone; after one, the logits and the KV of the step's
  // positions are undefined.
  // REQUIRES: the limits of the program and of Create hold; positions < max_seq_len; block tables
  // cover them.
  absl::Status Run(const StepInput& input, KvStore& kv, const Peers& peers);

  // Records each op of the steps that `recorder` records: instruction i by the name
  // `first_name` + i. Null: none.
  void SetRecorder(base::SpanRecorder* recorder, uint32_t first_name) {
    recorder_ = recorder;
    first_name_ = first_name;
  }

  // The logits of other rows of the last step: of a prompt whose every token wants its logprob,
  // max_output_rows at a time. REQUIRES: the last Run was OK.
  void ComputeLogits(absl::Span<const int32_t> output_rows);

  // [output rows, logits_width()] in the order asked for: this shard's part of the vocabulary,
  // which begins at token vocab_begin(). In the backend's memory, until the next Run or
  // ComputeLogits.
  absl::Span<const float> logits() const { return logits_; }
  int64_t logits_width() const { return program().logits.width; }
  int64_t vocab_begin() const { return program().vocab_begin; }

  // The first output row with a logit that is no finite number; -1: none.
  int64_t FirstNonfiniteRow() const;

  // The op that runs now, for any thread: "layer 3 AllGather"; empty between steps.
  const char* current_op() const;

  int64_t wait_ns() const { return wait_ns_; }  // of the last Run, for peers

  const graph::Program& program() const { return bound_->program(); }
  int64_t max_batch_seqs() const { return max_batch_seqs_; }
  int64_t weight_bytes() const { return bound_->weight_bytes(); }

 private:
  class StepRunner;

  // The step's integers in the backend's memory.
  struct DeviceInput {
    int32_t* tokens = nullptr;         // [max_batch_tokens]
    int32_t* positions = nullptr;      // [max_batch_tokens]
    int32_t* seq_row_begin = nullptr;  // [max_batch_seqs + 1]
    int32_t* output_rows = nullptr;    // [max_output_rows]
    int32_t* blocks = nullptr;         // [max_batch_seqs][max_blocks_per_seq_]
    const int32_t** tables = nullptr;  // [max_batch_seqs], into blocks; fixed
  };

  Executor(std::unique_ptr<BoundProgram> bound, kernels::Backend* backend, const Options& options);

  absl::Status AllocateInput();
  void CheckInput(const StepInput& input) const;
  void UploadInput(const StepInput& input);
  absl::Status RunSteps(size_t begin, size_t end, KvStore* kv, const Peers& peers);

  const std::unique_ptr<BoundProgram> bound_;
  kernels::Backend* const backend_;
  const int64_t max_batch_seqs_;
  const int64_t max_blocks_per_seq_;
  int64_t (*const now_ns_)();
  base::SpanRecorder* recorder_ = nullptr;
  uint32_t first_name_ = 0;
  size_t first_output_step_ = 0;  // steps from here on work on output rows

  std::unique_ptr<kernels::Buffer> input_memory_;
  DeviceInput device_;
  kernels::StepLayout layout_;  // of the running step, in the backend's memory
  int64_t num_output_rows_ = 0;
  absl::Span<const float> logits_;
  int64_t wait_ns_ = 0;
  std::atomic<int32_t> current_{-1};  // index of the running instruction
};

}  // namespace shoal::worker
