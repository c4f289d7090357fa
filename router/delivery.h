#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/thread/mutex.h"
#include "base/thread/span_recorder.h"
#include "router/engine.h"

namespace shoal::router {

// Brings events to their sinks on a thread of its own, so that making text of tokens and writing to
// sockets never delays the next plan. Bounded: a poster that is kMaxPending ahead waits; that is
// safe because no sink waits for the poster.
class Delivery {
 public:
  struct Item {
    std::shared_ptr<SequenceSink> sink;      // shared with the call that serves the client
    std::variant<absl::Status, Event> what;  // an admission, or an event
  };
  static constexpr size_t kMaxPending = 1 << 16;

  Delivery();
  ~Delivery() { Stop(); }

  // Delivers what was posted, then ends the thread. REQUIRES: the poster has stopped.
  void Stop();

  // In the order posted. Leaves `items` empty. One poster at a time. `step` is what they came of,
  // for the recorder.
  void Post(std::vector<Item>* items, uint64_t step = 0);

  // The thread's: a step for every batch it brings, which is what was posted while it brought the
  // last, with one span, named 0.
  base::SpanRecorder* recorder() { return &recorder_; }

 private:
  void Run();

  base::SpanRecorder recorder_;
  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<Item> pending_ ABSL_GUARDED_BY(mutex_);
  uint64_t pending_step_ ABSL_GUARDED_BY(mutex_) = 0;  // the last one posted
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when the rest is there
};

}  // namespace shoal::router
