#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"
#include "router/control/plan.h"

namespace shoal::router {

// What a step's duration depends on.
struct StepWork {
  uint32_t num_tokens = 0;    // computed
  uint32_t num_outputs = 0;   // rows that sample: each needs the head
  uint64_t num_attended = 0;  // pairs of a token and one that it attends to, itself included

  // `num_tokens` more of a sequence that has `position` already.
  void Add(uint64_t position, uint32_t num_tokens_added) {
    num_tokens += num_tokens_added;
    num_attended += num_tokens_added * position +
                    uint64_t{num_tokens_added} * (uint64_t{num_tokens_added} + 1) / 2;
  }
};

// How long a step may take, from how long others took:
//
//   f(tokens) + a * attended + b * outputs
//
// f is linear between powers of two of tokens, which follows the memory-bound floor of small steps
// and the kernels' tiles; a and b are numbers. All are estimated together by a Kalman filter
// (R. E. Kalman, 1960), so that each step corrects what it depends on and leaves the rest alone.
// The prior takes its scale from the first step: up to all of it may be what any step costs, the
// rest goes with tokens, and neighbouring sizes cost about the same per token. So a size that was
// never seen is taken to cost somewhat less than in proportion to the nearest that was. A step that
// takes several times its prediction (the machine was busy elsewhere) counts for a part of that.
//
// A value type; no clock. Cost: half a microsecond a step.
class CostModel {
 public:
  void Observe(const StepWork& work, absl::Duration duration);

  // Zero while nothing is known.
  absl::Duration Predict(const StepWork& work) const;

  // The most tokens of a prompt, of which `position` are computed, that a step of `work` may have
  // beside it to last at most `target`: 0 to `max_tokens`.
  uint32_t TokensWithin(absl::Duration target, const StepWork& work, uint64_t position,
                        uint32_t max_tokens) const;

  // A timer is late by up to a millisecond; the rest is for planning, sending and a step that is
  // quicker than most.
  static constexpr absl::Duration kPlanningLead = absl::Milliseconds(3);

  // When to make the plan after a step of this work that began at `start`: early enough for it to
  // be with the ranks when the step ends; no earlier, since a plan knows nothing of who arrives
  // later. `start` for a short step: waking up once more would cost more than it gains.
  absl::Time NextPlanTime(absl::Time start, const StepWork& work) const {
    const absl::Duration prediction = Predict(work);
    return prediction <= 2 * kPlanningLead ? start : start + prediction - kPlanningLead;
  }

 private:
  static constexpr int kKnots = 18;  // of f: 1, 2, 4, ... 131072 tokens
  static constexpr int kSize = kKnots + 2;
  using Vector = std::array<double, kSize>;

  static Vector Features(const StepWork& work);
  void SetPrior(const StepWork& first, double measured_ms);

  Vector weights_{};                        // milliseconds, for each feature
  std::array<Vector, kSize> covariance_{};  // of their errors
  uint64_t num_observations_ = 0;
};

}  // namespace shoal::router
