#include "worker/engine/sequence_table.h"

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace shoal::worker {
namespace {

using base::StepRow;

// Slots of one plan that end and start again count twice, hence some room over max_batch_seqs.
uint32_t MaxSlots(const EngineLimits& limits) { return limits.max_batch_seqs * 2 + 16; }

uint32_t BlocksOf(uint64_t num_tokens) {
  return static_cast<uint32_t>((num_tokens + kernels::kPageTokens - 1) / kernels::kPageTokens);
}

}  // namespace

struct SequenceTable::Known {
  bool live = false;
  uint64_t log_size = 0;
  uint64_t position = 0;
  uint64_t blocks = 0;
};

SequenceTable::SequenceTable(const EngineLimits& limits)
    : limits_(limits), sequences_(MaxSlots(limits)) {
  tokens_.reserve(limits.max_batch_tokens);
  positions_.reserve(limits.max_batch_tokens);
  output_rows_.reserve(limits.max_batch_tokens);
  output_uses_.reserve(limits.max_batch_tokens);
  seq_row_begin_.reserve(limits.max_batch_seqs + 1);
  block_tables_.reserve(limits.max_batch_seqs);
  for (Sequence& sequence : sequences_) {
    sequence.blocks.reserve(BlocksOf(limits.max_seq_len) + 1);
    sequence.log.reserve(limits.max_seq_len + 1);
  }
}

absl::Status SequenceTable::CheckBlocks(absl::Span<const uint32_t> ids) const {
  for (uint32_t id : ids) {
    if (id >= limits_.num_blocks) {
      return absl::InvalidArgumentError(
          absl::StrFormat("block %d is beyond the pool of %d blocks", id, limits_.num_blocks));
    }
  }
  return absl::OkStatus();
}

absl::Status SequenceTable::CheckStart(const base::SequenceStart& start) const {
  if (start.token_ids.empty() || start.token_ids.size() > limits_.max_seq_len ||
      start.num_prompt_tokens == 0 || start.num_prompt_tokens > start.token_ids.size() ||
      start.num_cached_tokens >= start.token_ids.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "slot %d starts with %d tokens, %d of the prompt, %d cached; at most %d tokens fit and at "
        "least one must be computed",
        start.slot, start.token_ids.size(), start.num_prompt_tokens, start.num_cached_tokens,
        limits_.max_seq_len));
  }
  for (uint32_t id : start.token_ids) {
    if (id >= limits_.vocab_size) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "slot %d has token %d; the vocabulary has %d", start.slot, id, limits_.vocab_size));
    }
  }
  for (const auto& [id, bias] : start.sampling.logit_bias) {
    if (id >= limits_.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrFormat("slot %d has a bias for token %d; the vocabulary has %d", start.slot, id,
                          limits_.vocab_size));
    }
  }
  return CheckBlocks(start.block_ids);
}

absl::Status SequenceTable::Validate(const base::StepPlan& plan) const {
  absl::flat_hash_map<uint32_t, Known> known;
  const auto find = [&](uint32_t slot) -> Known& {
    auto [it, inserted] = known.try_emplace(slot);
    if (inserted && sequences_[slot].live) {
      const Sequence& s = sequences_[slot];
      it->second = {true, s.log.size(), s.position, s.blocks.size()};
    }
    return it->second;
  };
  const auto check_slot = [&](uint32_t slot) {
    return slot < sequences_.size()
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     absl::StrFormat("slot %d is beyond the limit of %d", slot, sequences_.size()));
  };
  for (uint32_t slot : plan.ended_slots) {
    SHOAL_RETURN_IF_ERROR(check_slot(slot));
    if (!find(slot).live) {
      return absl::InvalidArgumentError(absl::StrFormat("slot %d ends but is not live", slot));
    }
    find(slot).live = false;
  }
  for (const base::BlockMove& move : plan.block_moves) {
    SHOAL_RETURN_IF_ERROR(CheckBlocks({move.source_block, move.target_block}));
  }
  for (const base::SequenceStart& start : plan.starts) {
    SHOAL_RETURN_IF_ERROR(check_slot(start.slot));
    SHOAL_RETURN_IF_ERROR(CheckStart(start));
    if (find(start.slot).live) {
      return absl::InvalidArgumentError(absl::StrFormat("slot %d starts twice", start.slot));
    }
    find(start.slot) = {true, start.token_ids.size(), start.num_cached_tokens,
                        start.block_ids.size()};
  }
  if (plan.rows.size() > limits_.max_batch_seqs) {
    return absl::InvalidArgumentError(absl::StrFormat("the plan has %d rows; the limit is %d",
                                                      plan.rows.size(), limits_.max_batch_seqs));
  }
  uint64_t num_tokens = 0;
  absl::flat_hash_set<uint32_t> seen;
  for (const StepRow& row : plan.rows) {
    SHOAL_RETURN_IF_ERROR(check_slot(row.slot));
    SHOAL_RETURN_IF_ERROR(CheckBlocks(row.new_block_ids));
    Known& sequence = find(row.slot);
    num_tokens += row.num_tokens;
    const bool brings_token = row.source == StepRow::Source::kToken;
    if (brings_token && (row.token_id >= limits_.vocab_size || row.num_tokens != 1 ||
                         sequence.position != sequence.log_size)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "row of slot %d brings token %d for %d tokens at position %d of a log of %d; the "
          "vocabulary has %d",
          row.slot, row.token_id, row.num_tokens, sequence.position, sequence.log_size,
          limits_.vocab_size));
    }
    if (brings_token) ++sequence.log_size;
    if (!seen.insert(row.slot).second || !sequence.live || row.num_tokens == 0 ||
        sequence.position + row.num_tokens > sequence.log_size ||
        (row.source == StepRow::Source::kLastSample &&
         sequence.position + 1 != sequence.log_size) ||
        sequence.blocks + row.new_block_ids.size() < BlocksOf(sequence.position + row.num_tokens)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "row of slot %d with %d tokens does not fit its sequence: live %d, position %d of a log "
          "of %d, %d + %d blocks of %d tokens",
          row.slot, row.num_tokens, sequence.live, sequence.position, sequence.log_size,
          sequence.blocks, row.new_block_ids.size(), kernels::kPageTokens));
    }
  }
  if (num_tokens > limits_.max_batch_tokens) {
    return absl::InvalidArgumentError(absl::StrFormat("the plan has %d tokens; the limit is %d",
                                                      num_tokens, limits_.max_batch_tokens));
  }
  return absl::OkStatus();
}

StepBatch SequenceTable::Apply(const base::StepPlan& plan) {
  for (uint32_t slot : plan.ended_slots) {
    sequences_[slot].live = false;
    state_hash_.OnEnd(slot);
  }
  for (const base::SequenceStart& start : plan.starts) {
    Sequence& sequence = sequences_[start.slot];
    sequence.live = true;
    sequence.log.assign(start.token_ids.begin(), start.token_ids.end());
    sequence.num_prompt_tokens = start.num_prompt_tokens;
    sequence.position = start.num_cached_tokens;
    sequence.blocks.assign(start.block_ids.begin(), start.block_ids.end());
    sequence.sampling = start.sampling;
    state_hash_.OnStart(start.slot, start.num_cached_tokens, start.block_ids);
  }
  tokens_.clear();
  positions_.clear();
  output_rows_.clear();
  output_uses_.clear();
  seq_row_begin_.assign(1, 0);
  block_tables_.clear();
  for (uint32_t i = 0; i < plan.rows.size(); ++i) ApplyRow(i, plan.rows[i]);

  StepBatch batch;
  batch.tokens = tokens_;
  batch.output_rows = output_rows_;
  batch.layout.rows = static_cast<int64_t>(tokens_.size());
  batch.layout.num_seqs = static_cast<int32_t>(block_tables_.size());
  batch.layout.seq_row_begin = seq_row_begin_.data();
  batch.layout.positions = positions_.data();
  batch.layout.block_tables = block_tables_.data();
  return batch;
}

void SequenceTable::ApplyRow(uint32_t plan_row, const StepRow& row) {
  Sequence& sequence = sequences_[row.slot];
  if (row.source == StepRow::Source::kToken) sequence.log.push_back(row.token_id);
  sequence.blocks.insert(sequence.blocks.end(), row.new_block_ids.begin(), row.new_block_ids.end());
  const bool all = row.outputs == StepRow::Outputs::kAll;
  for (uint32_t i = 0; i < row.num_tokens; ++i) {
    const uint32_t position = sequence.position + i;
    const bool is_end = position + 1 == sequence.log.size();
    const OutputUse use = {.plan_row = plan_row,
                           .position = position,
                           .score = all && position + 1 < sequence.num_prompt_tokens,
                           .sample = is_end && row.outputs != StepRow::Outputs::kNone};
    if (use.score || use.sample) {
      output_rows_.push_back(static_cast<int32_t>(tokens_.size()));
      output_uses_.push_back(use);
    }
    tokens_.push_back(static_cast<int32_t>(sequence.log[position]));
    positions_.push_back(static_cast<int32_t>(position));
  }
  sequence.position += row.num_tokens;
  state_hash_.OnBlocks(row.slot, row.new_block_ids);
  state_hash_.OnAdvance(row.slot, row.num_tokens);
  block_tables_.push_back(sequence.blocks.data());
  seq_row_begin_.push_back(static_cast<int32_t>(tokens_.size()));
}

void SequenceTable::AppendSample(uint32_t slot, uint32_t token_id) {
  CHECK(sequences_[slot].live) << "slot " << slot;
  sequences_[slot].log.push_back(token_id);
}

uint32_t SequenceTable::blocks_used() const {
  absl::flat_hash_set<int32_t> used;
  for (const Sequence& sequence : sequences_) {
    if (sequence.live) used.insert(sequence.blocks.begin(), sequence.blocks.end());
  }
  return static_cast<uint32_t>(used.size());
}

void SequenceTable::Clear() {
  for (Sequence& sequence : sequences_) sequence.live = false;
  state_hash_.Clear();
}

}  // namespace shoal::worker
