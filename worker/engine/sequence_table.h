#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/state_hash.h"
#include "base/step_plan.h"
#include "kernels/ops.h"

namespace shoal::worker {

// What a rank can take; a plan that exceeds it is refused before anything is touched.
struct EngineLimits {
  uint32_t num_blocks = 0;
  uint32_t max_batch_tokens = 0;
  uint32_t max_batch_seqs = 0;
  uint32_t max_seq_len = 0;
  uint32_t vocab_size = 0;
};

// A step's arrays in the form that the executor wants. Spans are valid until the next Apply.
struct StepBatch {
  absl::Span<const int32_t> tokens;  // [rows]
  kernels::StepLayout layout;
  absl::Span<const int32_t> output_rows;  // rows whose logits are wanted, ascending
};

// One row of logits and what is to be done with it: `plan_row` indexes StepPlan::rows.
struct OutputUse {
  uint32_t plan_row = 0;
  uint32_t position = 0;  // of the row's token; its logits are about the token at position + 1
  bool score = false;     // the logprob of the log's next token
  bool sample = false;    // draw the next token
};

// The sequences of a rank by slot: token log, position, block table, sampling. A function of the
// plans alone, the same on every rank, fingerprinted by base::StateHash. Used by the rank's loop
// only.
class SequenceTable {
 public:
  struct Sequence {
    bool live = false;
    std::vector<uint32_t> log;
    uint32_t num_prompt_tokens = 0;
    uint32_t position = 0;  // tokens whose KV is stored
    std::vector<int32_t> blocks;
    base::SamplingParams sampling;
  };

  explicit SequenceTable(const EngineLimits& limits);

  // INVALID_ARGUMENT naming the value and the limit for a plan that the limits or the live
  // sequences do not allow. Changes nothing.
  absl::Status Validate(const base::StepPlan& plan) const;

  // Applies ended slots, starts and rows (block moves are the caller's, before). The positions of
  // rows advance. REQUIRES: Validate(plan) is ok.
  StepBatch Apply(const base::StepPlan& plan);

  // What the rows in StepBatch::output_rows are for, in the same order.
  absl::Span<const OutputUse> output_uses() const { return output_uses_; }

  // Appends a drawn token to a slot's log: the next row with kLastSample computes it.
  void AppendSample(uint32_t slot, uint32_t token_id);

  const Sequence& sequence(uint32_t slot) const { return sequences_[slot]; }
  uint64_t state_hash() const { return state_hash_.value(); }
  uint32_t blocks_used() const;

  // Forgets all: a new epoch.
  void Clear();

 private:
  struct Known;  // a sequence as the rest of a plan would find it
  absl::Status CheckStart(const base::SequenceStart& start) const;
  absl::Status CheckBlocks(absl::Span<const uint32_t> ids) const;
  void ApplyRow(uint32_t plan_row, const base::StepRow& row);

  const EngineLimits limits_;
  std::vector<Sequence> sequences_;  // by slot
  base::StateHash state_hash_;

  // The arrays of the step at hand.
  std::vector<int32_t> tokens_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> seq_row_begin_;
  std::vector<const int32_t*> block_tables_;
  std::vector<int32_t> output_rows_;
  std::vector<OutputUse> output_uses_;
};

}  // namespace shoal::worker
