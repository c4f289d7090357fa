#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/step_plan.h"
#include "worker/engine/noise.h"

namespace shoal::worker {

inline constexpr uint32_t kVocabChunk = 256;  // tokens whose exponentials are summed together

// A token and its logit; the order of candidates is best logit first, then lowest id.
struct Candidate {
  float logit = 0;
  uint32_t id = 0;
};

// The best of a range by  logit + temperature * noise  (greedy when `noise` is null).
struct Best {
  double score = 0;
  uint32_t id = 0;
  bool finite = true;  // false: a logit is NaN or +inf, or all are -inf
};

// Scans logits[i] of token begin + i. Ties go to the lowest id.
Best FindBest(absl::Span<const float> logits, uint32_t begin, float temperature,
              const GumbelNoise* noise);

// The better of two ranges' bests; `a` holds the lower ids.
Best Better(const Best& a, const Best& b);

// Functions of one whole row of logits. Holds scratch; not thread-safe.
class Distribution {
 public:
  explicit Distribution(uint32_t vocab_size);

  // The draw with top_k, top_p and min_p: the kept tokens are the first top_k candidates, of those
  // the shortest prefix whose probability (softmax(logit / temperature) over the top_k kept)
  // reaches top_p (Holtzman et al., 2019), of those the ones with at least min_p times the best's
  // probability; then the best of logit + temperature * noise among them. temperature 0 is the
  // argmax.
  Best Draw(absl::Span<const float> logits, const base::SamplingParams& params,
            const GumbelNoise& noise);

  // Log-probabilities under softmax(logits): of `chosen`, and of the best `num_top` tokens.
  base::PositionLogprobs Logprobs(absl::Span<const float> logits, uint32_t chosen, int num_top);

 private:
  // The first `count` candidates in order. REQUIRES: no logit is NaN.
  absl::Span<const Candidate> Top(absl::Span<const float> logits, uint32_t count);
  // A logit that at least `count` others reach; fills block_max_.
  float FloorOfTop(absl::Span<const float> logits, size_t count);
  // sum exp((logit - max) / temperature) in chunks of kVocabChunk, joined in order.
  static double SumExp(absl::Span<const float> logits, double max, double inverse_temperature);
  uint32_t NucleusSize(absl::Span<const float> logits, uint32_t kept,
                       const base::SamplingParams& params);

  std::vector<Candidate> candidates_;
  std::vector<float> block_max_;   // of each kTopBlock logits
  std::vector<float> sorted_max_;  // the same, partly sorted
};

}  // namespace shoal::worker
