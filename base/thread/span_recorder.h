#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/thread/mutex.h"

namespace shoal::base {

// What a step worked on.
struct BatchSize {
  uint32_t num_sequences = 0;
  uint32_t num_tokens = 0;
};

// What ran from when to when, in nanoseconds of Unix time (so that processes of one machine share
// an axis).
struct Span {
  uint64_t step = 0;
  uint32_t name = 0;  // an index that the recorder's owner gives a meaning
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  BatchSize batch;  // zeros where the writer does not say
};

inline int64_t UnixNanos() { return absl::GetCurrentTimeNanos(); }

// Records the spans of the next steps of a loop, when asked to. While nobody asks, a step costs its
// loop one relaxed load.
//
// The loop's thread, the writer, calls BeginStep, Add, EndStep; it allocates nothing. Any other
// thread calls Record.
class SpanRecorder {
 public:
  // Waits until `num_steps` steps have begun and ended, for `timeout`, or until `is_abandoned`,
  // which is asked at once and then every 50 ms, says so; what was recorded, in order, at most
  // `max_spans`. FAILED_PRECONDITION: another thread is recording. DEADLINE_EXCEEDED: the running
  // step did not end within `timeout` and a second.
  absl::StatusOr<std::vector<Span>> Record(uint32_t num_steps, size_t max_spans,
                                           absl::Duration timeout,
                                           const std::function<bool()>& is_abandoned = nullptr) {
    MutexLock lock(&mutex_);
    if (is_taken_ || in_step_) {
      return absl::FailedPreconditionError("a trace is being recorded already; try again later");
    }
    is_taken_ = true;
    spans_.clear();
    spans_.reserve(max_spans);
    steps_left_ = num_steps;
    is_armed_.store(num_steps > 0, std::memory_order_relaxed);
    const absl::Time deadline = absl::Now() + timeout;
    const absl::Duration period = is_abandoned ? kAbandonPeriod : absl::InfiniteDuration();
    while (steps_left_ > 0 && absl::Now() < deadline && !(is_abandoned && is_abandoned())) {
      changed_.WaitFor(&mutex_, std::min(deadline - absl::Now(), period));
    }
    is_armed_.store(false, std::memory_order_relaxed);
    steps_left_ = 0;
    const absl::Time last = absl::Now() + absl::Seconds(1);
    while (in_step_ && absl::Now() < last) changed_.WaitFor(&mutex_, last - absl::Now());
    is_taken_ = false;
    if (in_step_) {
      return absl::DeadlineExceededError(absl::StrCat("step ", step_, " has not ended within ",
                                                      absl::FormatDuration(timeout),
                                                      " and a second"));
    }
    return std::move(spans_);
  }

  // --- The writer's. ---

  void BeginStep(uint64_t step) {
    if (!is_armed_.load(std::memory_order_relaxed)) return;
    MutexLock lock(&mutex_);
    if (steps_left_ == 0) return;
    in_step_ = is_recording_ = true;
    step_ = step;
  }

  // Between BeginStep and EndStep. The writer may spare itself the clock when this is false.
  bool is_recording() const { return is_recording_; }

  // Nothing when the step is not recorded; no thread but the writer touches spans_ while in_step_.
  void Add(uint32_t name, int64_t begin_ns, int64_t end_ns,
           BatchSize batch = {}) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!is_recording_ || spans_.size() == spans_.capacity()) return;
    spans_.push_back({step_, name, begin_ns, end_ns, batch});
  }

  void EndStep() {
    if (!is_recording_) return;
    is_recording_ = false;
    MutexLock lock(&mutex_);
    in_step_ = false;
    if (steps_left_ > 0) --steps_left_;
    if (steps_left_ == 0) is_armed_.store(false, std::memory_order_relaxed);
    changed_.SignalAll();
  }

 private:
  static constexpr absl::Duration kAbandonPeriod = absl::Milliseconds(50);

  std::atomic<bool> is_armed_{false};  // a hint; the truth is steps_left_ > 0
  bool is_recording_ = false;          // the writer's own

  Mutex mutex_;
  CondVar changed_;
  bool is_taken_ ABSL_GUARDED_BY(mutex_) = false;
  bool in_step_ ABSL_GUARDED_BY(mutex_) = false;  // the writer is inside a recorded step
  uint32_t steps_left_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t step_ ABSL_GUARDED_BY(mutex_) = 0;  // written by the writer alone
  std::vector<Span> spans_ ABSL_GUARDED_BY(mutex_);
};

// A step of a loop, from its construction to its destruction. The writer's.
class RecordedStep {
 public:
  RecordedStep(SpanRecorder* recorder, uint64_t step) : recorder_(recorder) {
    recorder->BeginStep(step);
  }
  ~RecordedStep() { recorder_->EndStep(); }
  RecordedStep(const RecordedStep&) = delete;
  RecordedStep& operator=(const RecordedStep&) = delete;

 private:
  SpanRecorder* const recorder_;
};

}  // namespace shoal::base
