#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/time/time.h"
#include "base/state_hash.h"
#include "glog/logging.h"

namespace shoal::simulation {

// A stream of random numbers that belongs to one thing of a simulation (a link, a rank, a client),
// so that leaving another thing out does not change it.
class Random {
 public:
  Random(uint64_t seed, uint64_t owner) : state_(base::CombineHash(seed, owner)) {}

  uint64_t Next() { return state_ = base::MixBits(state_); }
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(Next() % bound); }
  uint32_t Between(uint32_t first, uint32_t last) { return first + Below(last - first + 1); }
  bool OneIn(uint32_t n) { return Below(n) == 0; }
  absl::Duration Between(absl::Duration first, absl::Duration last) {
    const int64_t range = absl::ToInt64Nanoseconds(last - first) + 1;
    return first + absl::Nanoseconds(static_cast<int64_t>(Next() % static_cast<uint64_t>(range)));
  }

 private:
  uint64_t state_;
};

// Virtual time: what is to happen, in order; the clock jumps from one action to the next. Actions
// of the same moment run in an order that the seed chooses.
class EventQueue {
 public:
  EventQueue(uint64_t seed, absl::Time start) : random_(seed, /*owner=*/0), now_(start) {}

  absl::Time now() const { return now_; }

  // REQUIRES: `time` is not past.
  void At(absl::Time time, std::function<void()> action) {
    CHECK_GE(time, now_);
    actions_.emplace(std::make_pair(time, random_.Next()), std::move(action));
  }
  void After(absl::Duration delay, std::function<void()> action) {
    At(now_ + delay, std::move(action));
  }

  // Returns false when nothing is left.
  bool RunNext() {
    if (actions_.empty()) return false;
    auto next = actions_.extract(actions_.begin());
    now_ = next.key().first;
    ++num_run_;
    next.mapped()();
    return true;
  }
  uint64_t num_run() const { return num_run_; }

 private:
  Random random_;
  absl::Time now_;
  std::multimap<std::pair<absl::Time, uint64_t>, std::function<void()>> actions_;
  uint64_t num_run_ = 0;
};

}  // namespace shoal::simulation
