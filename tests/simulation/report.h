#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace shoal::simulation {

// What a simulation has to say: the first thing that must not be, and the last lines of history
// before it.
class Report {
 public:
  static constexpr size_t kMaxLines = 60;

  explicit Report(bool keeps_history) : keeps_history_(keeps_history) {}

  bool keeps_history() const { return keeps_history_; }
  template <typename... Words>
  void Note(absl::Duration time, const Words&... words) {
    if (!keeps_history_) return;
    lines_.push_back(absl::StrCat(absl::FormatDuration(time), "  ", words...));
    if (lines_.size() > kMaxLines) lines_.pop_front();
  }
  void Violation(std::string what) {
    if (violation_.empty()) violation_ = std::move(what);
  }

  bool failed() const { return !violation_.empty(); }
  const std::string& violation() const { return violation_; }
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  const bool keeps_history_;
  std::string violation_;
  std::deque<std::string> lines_;
};

}  // namespace shoal::simulation
