#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/step_plan.h"

namespace shoal::worker {

// Changes a row of logits before the draw, in this order: logit_bias; repetition penalty over
// prompt and output (Keskar et al., CTRL, 2019: a logit above 0 is divided by it, else multiplied);
// presence and frequency penalties over the output; a ban (-inf) of end_ids while fewer than
// min_tokens were generated. Works on any range [begin, begin + row.size()) of the vocabulary, so
// that a shard changes its own part alone. Not thread-safe: it keeps scratch of one count a token.
class LogitAdjuster {
 public:
  explicit LogitAdjuster(uint32_t vocab_size) : counts_(vocab_size, 0) {}

  static bool IsNeeded(const base::SamplingParams& params, uint32_t num_generated);

  // `log` is the prompt and what was generated; its first `num_prompt_tokens` are the prompt.
  void Apply(const base::SamplingParams& params, absl::Span<const uint32_t> log,
             uint32_t num_prompt_tokens, uint32_t begin, absl::Span<float> row);

 private:
  void Penalise(const base::SamplingParams& params, absl::Span<const uint32_t> log,
                uint32_t num_prompt_tokens, uint32_t begin, absl::Span<float> row);

  std::vector<uint32_t> counts_;  // all 0 between calls
};

}  // namespace shoal::worker
