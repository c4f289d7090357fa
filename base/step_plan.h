#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace shoal::base {

// What the router tells the ranks of one group, and what they answer. proto/shoal/worker/v1 has the
// same messages; both edges translate field by field.

// How the next token of a sequence is drawn. Validated by the frontend; sent once per start.
struct SamplingParams {
  float temperature = 1;  // 0 = greedy
  float top_p = 1;
  int top_k = 0;  // 0 = off
  float min_p = 0;
  float repetition_penalty = 1;  // over prompt and output
  float presence_penalty = 0;    // over output
  float frequency_penalty = 0;   // over output
  uint64_t seed = 0;
  uint32_t choice = 0;  // which of n choices: the noise is keyed by (seed, choice, position, id)
  std::vector<std::pair<uint32_t, float>> logit_bias;  // sorted by token id
  std::vector<uint32_t> end_ids;  // banned while fewer than min_tokens were generated
  uint32_t min_tokens = 0;
  int top_logprobs = -1;  // -1 = no logprobs, 0 = of the chosen token only, k = and of the best k
  bool prompt_logprobs = false;
};

// A sequence comes (again) to the ranks: first admission, after a preemption, after a lost group.
// The whole log travels, so that penalties and min_tokens mean the same every time.
struct SequenceStart {
  uint32_t slot = 0;
  std::vector<uint32_t> token_ids;  // the log: the prompt, then what was generated so far
  uint32_t num_prompt_tokens = 0;
  uint32_t num_cached_tokens = 0;   // whose KV the first blocks already have; a multiple of a block
  std::vector<uint32_t> block_ids;  // room for the whole log
  SamplingParams sampling;
};

// One sequence's part of a step. It computes the KV of the `num_tokens` that follow the slot's
// position and advances the position by as many.
struct StepRow {
  enum class Source {
    kLog,         // the next tokens of the log that the start brought
    kLastSample,  // the token that this slot sampled last; num_tokens is 1. With one stage only.
    kToken,       // `token_id`, which this slot sampled last; num_tokens is 1. In a pipeline.
  };
  enum class Outputs {
    kNone,
    kLast,  // the row reaches the end of the log: sample the token after it
    kAll,   // as kLast if it reaches the end of the log; and logprobs of prompt tokens, see
            // RowOutput
  };

  uint32_t slot = 0;
  uint32_t num_tokens = 0;
  Source source = Source::kLog;
  uint32_t token_id = 0;  // kToken
  Outputs outputs = Outputs::kNone;
  std::vector<uint32_t> new_block_ids;  // appended to the slot's block table before the row runs
};

struct BlockMove {
  enum class Kind { kCopy };
  Kind kind = Kind::kCopy;
  uint32_t source_block = 0;
  uint32_t target_block = 0;
};

// A rank applies a plan in this order: ended_slots, block_moves, starts, rows. A slot that ends
// and a slot that starts in one plan may be the same.
struct StepPlan {
  uint64_t step = 0;  // grows by one with every plan, across epochs too
  std::vector<SequenceStart> starts;
  std::vector<StepRow> rows;  // at most one a slot
  std::vector<uint32_t> ended_slots;
  std::vector<BlockMove> block_moves;
  uint64_t state_hash = 0;  // base::StateHash after the plan
};

struct TokenLogprob {
  uint32_t token_id = 0;
  float logprob = 0;
};

struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // best first
};

struct RowOutput {
  uint32_t slot = 0;
  std::vector<uint32_t> token_ids;         // one if the row samples, else none
  std::vector<PositionLogprobs> logprobs;  // of token_ids, if top_logprobs >= 0
  // With Outputs::kAll: one for each position p of the row with p + 1 < num_prompt_tokens, of the
  // log's token p + 1 after the tokens up to p.
  std::vector<PositionLogprobs> prompt_logprobs;
  std::string error;  // not empty: this sequence failed (non-finite logits), the step did not
};

// One output for every row, in the order of the plan's rows.
struct StepResult {
  uint64_t step = 0;
  std::vector<RowOutput> outputs;
};

}  // namespace shoal::base
