#include "router/control/first_token.h"

#include <algorithm>
#include <vector>

namespace shoal::router {
namespace {

// Steps that compute `num_tokens` of prompts beside what decodes.
absl::Duration PrefillTime(uint64_t num_tokens, uint32_t tokens_per_step, const StepWork& decodes,
                           const CostModel& model) {
  StepWork full = decodes;
  full.Add(0, tokens_per_step);
  StepWork last = decodes;
  last.Add(0, static_cast<uint32_t>(num_tokens % tokens_per_step));
  absl::Duration time = model.Predict(full) * static_cast<double>(num_tokens / tokens_per_step);
  if (num_tokens % tokens_per_step > 0) time += model.Predict(last);
  return time;
}

// Steps until enough of those that run have ended for it to have a slot.
double StepsToASlot(const Backlog& backlog, double mean_output) {
  const uint32_t num_wanted = backlog.num_waiting_ahead + 1;
  if (num_wanted <= backlog.num_free_slots || backlog.running.empty()) return 0;
  const uint32_t num_ends = num_wanted - backlog.num_free_slots;
  std::vector<double> left;
  for (const Backlog::Running& running : backlog.running) {
    const double expected = std::max(0.0, mean_output - running.num_generated);
    left.push_back(std::min<double>(expected, running.num_left));
  }
  std::sort(left.begin(), left.end());
  // Slots that are free again go to those ahead, who have whole answers before them.
  const size_t rounds = (num_ends - 1) / left.size();
  return left[(num_ends - 1) % left.size()] + static_cast<double>(rounds) * mean_output;
}

}  // namespace

FirstTokenPrediction PredictFirstToken(const Backlog& backlog, const CostModel& model,
                                       uint32_t prefill_tokens, double mean_output) {
  const uint32_t num_decoding = backlog.decodes.num_tokens;
  const uint32_t tokens_per_step =
      prefill_tokens > num_decoding ? prefill_tokens - num_decoding : 1;
  FirstTokenPrediction prediction;
  prediction.alone = PrefillTime(backlog.num_own_tokens, prefill_tokens, {}, model);
  const absl::Duration prefill = PrefillTime(backlog.num_tokens_ahead + backlog.num_own_tokens,
                                             tokens_per_step, backlog.decodes, model);
  const absl::Duration slot = model.Predict(backlog.decodes) * StepsToASlot(backlog, mean_output);
  // Prompts ahead are computed while it waits for a slot.
  const absl::Duration own =
      PrefillTime(backlog.num_own_tokens, tokens_per_step, backlog.decodes, model);
  prediction.total = std::max(prefill, slot + own);
  return prediction;
}

}  // namespace shoal::router
