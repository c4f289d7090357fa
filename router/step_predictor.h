#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "absl/time/time.h"

namespace shoal::router {

// How long a step may take, from how long others of its size took: a moving average for each power
// of two of tokens. A size that was not seen yet is taken to cost in proportion to the next smaller
// one, which is too much rather than too little.
class StepPredictor {
 public:
  void Observe(uint32_t num_tokens, absl::Duration duration) {
    Bucket& bucket = buckets_[BucketOf(num_tokens)];
    bucket.average = bucket.is_known ? bucket.average * 0.75 + duration * 0.25 : duration;
    bucket.is_known = true;
  }

  // Zero while nothing of this size or below is known.
  absl::Duration Predict(uint32_t num_tokens) const {
    for (int i = BucketOf(num_tokens); i >= 0; --i) {
      if (buckets_[i].is_known) {
        return buckets_[i].average * (int64_t{1} << (BucketOf(num_tokens) - i));
      }
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
