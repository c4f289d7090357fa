#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "router/control/cost_model.h"
#include "router/control/scheduler.h"

namespace shoal::router {

struct FirstTokenPrediction {
  absl::Duration total;  // from now to the first token
  absl::Duration alone;  // what its own prompt takes of that, were there nothing else to do
};

// When a request that was submitted now would have its first token. `prefill_tokens`: prompt tokens
// of a step, at most. `mean_output`: tokens that answers have had on average; 0: unknown, then
// nobody is expected to be waited for. Optimistic where it does not know: blocks that run out,
// prompts that come later and go first.
FirstTokenPrediction PredictFirstToken(const Backlog& backlog, const CostModel& model,
                                       uint32_t prefill_tokens, double mean_output);

}  // namespace shoal::router
