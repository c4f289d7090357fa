#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/step_plan.h"
#include "parallel/transport.h"
#include "worker/engine/distribution.h"
#include "worker/engine/logit_adjuster.h"

namespace shoal::worker {

// What is wanted of one row of logits.
struct SampleRequest {
  absl::Span<const float> logits;  // this shard's part of the vocabulary
  const base::SamplingParams* params = nullptr;
  absl::Span<const uint32_t> log;  // the tokens before the one that is drawn or scored
  uint32_t num_prompt_tokens = 0;
  bool score = false;  // true: the logprobs of `target`, nothing is drawn
  uint32_t target = 0;
};

struct SampleResult {
  uint32_t token_id = 0;
  bool has_logprobs = false;
  base::PositionLogprobs logprobs;
  bool finite = true;  // false: the row's logits are not; token_id means nothing
};

// Draws the tokens of a step. Every shard of the last stage calls Run with the same requests (its
// own part of the logits) and gets the same results. A row whose draw is an argmax (greedy, or
// Gumbel-max over the whole vocabulary) costs an exchange of 16 bytes; top_k, top_p, min_p and
// logprobs gather the row's logits. Logprobs are of the model's own distribution: before bias,
// penalties and temperature. Used by the rank's loop alone. The results do not depend on the number
// of shards.
class Sampler {
 public:
  // shard_begins: first token of each shard's range, then the vocabulary's size. max_rows bounds
  // Run's requests.
  Sampler(std::vector<uint32_t> shard_begins, int shard, int max_rows);

  // `transport` may be null with one shard. Errors are the transport's.
  absl::Status Run(absl::Span<const SampleRequest> requests, parallel::Transport* transport,
                   std::vector<SampleResult>* results);

 private:
  static bool NeedsWholeRow(const SampleRequest& request);
  Best LocalBest(const SampleRequest& request);
  absl::Status DrawByArgmax(absl::Span<const SampleRequest> requests,
                            parallel::Transport* transport, std::vector<SampleResult>* results);
  absl::Status DrawFromWholeRows(absl::Span<const SampleRequest> requests,
                                 parallel::Transport* transport,
                                 std::vector<SampleResult>* results);
  void DrawWholeRow(const SampleRequest& request, absl::Span<const float> row,
                    SampleResult* result);

  const std::vector<uint32_t> shard_begins_;
  const int shard_;
  const uint32_t begin_;
  const uint32_t vocab_size_;
  LogitAdjuster adjuster_;
  Distribution distribution_;
  std::vector<int> rows_;        // scratch: indices of the requests at hand
  std::vector<Best> bests_;      // scratch: [shards, rows]
  std::vector<float> adjusted_;  // scratch: one row
  std::vector<float> row_;       // scratch: one row, put together from all shards
  std::vector<float> sent_;      // scratch: kGatherRows parts of this shard
  std::vector<float> gathered_;  // scratch: kGatherRows rows, by shard
};

}  // namespace shoal::worker
