#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/control/plan.h"

namespace shoal::router {

enum class Priority { kLow = 0, kNormal = 1, kHigh = 2 };

// One sequence to generate, already validated and tokenised by the frontend. A client's request
// for n choices is n of these that differ in sampling.choice; they share the prompt's KV.
struct Request {
  uint64_t id = 0;  // unique among unfinished requests
  // The prompt; a resumed stream appends what was generated before and says where the prompt ends.
  std::vector<uint32_t> token_ids;
  uint32_t num_prompt_tokens = 0;  // 0 = all of token_ids
  uint32_t max_tokens = 0;         // generated tokens, those of a resumed stream included
  std::vector<uint32_t> stop_token_ids;
  std::vector<uint32_t> eos_ids;  // the model's ends of sequence
  bool ignore_eos = false;
  SamplingParams sampling;
  Priority priority = Priority::kNormal;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time arrival;
  std::string cache_salt;  // sequences share KV only within one salt
};

enum class FinishReason {
  kStopToken,  // an end-of-sequence or stop token
  kLength,     // max_tokens or the longest sequence
  kCancelled,
  kDeadline,
  kError,
};

// How a request ended, with what it used.
struct Outcome {
  FinishReason reason = FinishReason::kLength;
  absl::Status status = absl::OkStatus();  // not OK for kCancelled, kDeadline, kError
  uint32_t stop_token_id = 0;              // kStopToken only
  std::vector<PositionLogprobs> stop_token_logprobs = {};  // its logprobs, if asked
  uint32_t num_prompt_tokens = 0;
  uint32_t num_generated_tokens = 0;  // the stop token included
  uint32_t num_cached_tokens = 0;     // prompt tokens found in the cache at the first admission
  uint32_t num_preemptions = 0;
  // Durations since the arrival; infinite for what did not happen.
  absl::Duration admitted = absl::InfiniteDuration();
  absl::Duration first_token = absl::InfiniteDuration();
  absl::Duration finished = absl::ZeroDuration();
};

// What happened to a request. Every accepted request gets any number of kTokens and
// kPromptLogprobs and then exactly one kFinished; nothing follows it.
struct Event {
  enum class Kind { kTokens, kPromptLogprobs, kFinished };
  Kind kind = Kind::kTokens;
  uint64_t request_id = 0;
  // kTokens: what was generated. The token that ends the request is not among them: kFinished has
  // it.
  std::vector<uint32_t> token_ids;
  // kTokens: of token_ids, if asked. kPromptLogprobs: of the next prompt tokens; the first prompt
  // token has none.
  std::vector<PositionLogprobs> logprobs;
  Outcome outcome;  // kFinished; of other kinds its counts and durations so far
};

}  // namespace shoal::router
