#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "absl/time/time.h"

namespace shoal::router {

// How long a step may take, from how long others of its size took: a moving average for each power
// of two of tokens. A size that was not seen yet is taken to cost in proportion to the next smaller
// one, or as much as a larger one: too much rather than too little.
class StepPredictor {
 public:
  // A timer is late by up to a millisecond; the rest is for planning, sending and a step that is
  // quicker than most.
  static constexpr absl::Duration kPlanningLead = absl::Milliseconds(3);

  void Observe(uint32_t num_tokens, absl::Duration duration) {
    Bucket& bucket = buckets_[BucketOf(num_tokens)];
    bucket.average = bucket.is_known ? bucket.average * 0.75 + duration * 0.25 : duration;
    bucket.is_known = true;
  }

  // When to make the plan after a step of this size that began at `start`: early enough for it to
  // be with the ranks when the step ends; no earlier, since a plan knows nothing of who arrives
  // later. `start` for a short step: waking up once more would cost more than it gains.
  absl::Time NextPlanTime(absl::Time start, uint32_t num_tokens) const {
    const absl::Duration prediction = Predict(num_tokens);
    return prediction <= 2 * kPlanningLead ? start : start + prediction - kPlanningLead;
  }

  // Zero while nothing is known.
  absl::Duration Predict(uint32_t num_tokens) const {
    const int bucket = BucketOf(num_tokens);
    for (int i = bucket; i >= 0; --i) {
      if (buckets_[i].is_known) return buckets_[i].average * (int64_t{1} << (bucket - i));
    }
    for (size_t i = bucket; i < buckets_.size(); ++i) {
      if (buckets_[i].is_known) return buckets_[i].average;
    }
    return absl::ZeroDuration();
  }

 private:
  struct Bucket {
    bool is_known = false;
    absl::Duration average;
  };
  // Bucket b holds [2^(b-1), 2^b) tokens.
  static int BucketOf(uint32_t num_tokens) { return std::bit_width(num_tokens); }

  std::array<Bucket, 33> buckets_;
};

}  // namespace shoal::router
