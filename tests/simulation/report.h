#pragma once

#include <cstdint>
#include <iostream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/state_hash.h"

namespace shoal::simulation {

// What happened in simulations, to see that they meet what they are made for.
struct Tally {
  uint64_t num_simulations = 0;
  uint64_t num_events = 0;
  uint64_t num_steps = 0;
  uint64_t num_losses = 0;  // of groups
  uint64_t num_preemptions = 0;
  uint64_t num_prefix_hits = 0;  // tokens
  uint64_t num_streams = 0;
  uint64_t num_complete = 0;  // streams with all their tokens
  uint64_t num_resumed = 0;   // at another router
  uint64_t num_poisoned = 0;  // ended INTERNAL because ranks died of them
  uint64_t num_unavailable = 0;
  uint64_t num_late = 0;
  uint64_t num_cancelled = 0;

  Tally& operator+=(const Tally& other) {
    num_simulations += other.num_simulations;
    num_events += other.num_events;
    num_steps += other.num_steps;
    num_losses += other.num_losses;
    num_preemptions += other.num_preemptions;
    num_prefix_hits += other.num_prefix_hits;
    num_streams += other.num_streams;
    num_complete += other.num_complete;
    num_resumed += other.num_resumed;
    num_poisoned += other.num_poisoned;
    num_unavailable += other.num_unavailable;
    num_late += other.num_late;
    num_cancelled += other.num_cancelled;
    return *this;
  }
};

// What a simulation has to say: the first thing that must not be, its history, and a count of what
// happened.
class Report {
 public:
  // A history is told on stderr line by line, so that a crash does not lose it.
  explicit Report(bool tells_history) : tells_history_(tells_history) {}

  template <typename... Words>
  void Note(absl::Time time, const Words&... words) {
    if (!tells_history_) return;
    const absl::Duration since_start = time - absl::UnixEpoch();
    std::cerr << absl::StrCat(absl::FormatDuration(since_start), "  ", words..., "\n");
  }
  void Violation(std::string what) {
    if (violation_.empty()) violation_ = std::move(what);
  }
  // Adds to the fingerprint of the history.
  void Mark(uint64_t value) { fingerprint_ = base::CombineHash(fingerprint_, value); }

  bool failed() const { return !violation_.empty(); }
  const std::string& violation() const { return violation_; }
  uint64_t fingerprint() const { return fingerprint_; }
  Tally& tally() { return tally_; }
  const Tally& tally() const { return tally_; }

 private:
  const bool tells_history_;
  std::string violation_;
  uint64_t fingerprint_ = 0;
  Tally tally_;
};

}  // namespace shoal::simulation
