#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "base/thread/mutex.h"

namespace shoal::router {

// One thread, below the priority of those that plan and deliver, and the work that waits for it, in
// order. Bounded by count and by bytes of requests, those of the running work included.
// Thread-safe.
class WorkQueue {
 public:
  struct Options {
    size_t max_waiting = 256;
    size_t max_bytes = 64 << 20;
    int nice = 5;  // of the thread, 0 .. 19
  };
  // Called exactly once. OK: now is the time to do it. Else it is not to be done, and why; it then
  // has to be quick.
  using Work = std::function<void(const absl::Status& turn)>;

  explicit WorkQueue(const Options& options);
  ~WorkQueue() { Stop(); }

  // Work on a request of `bytes`. RESOURCE_EXHAUSTED (retry) when the queue is full, UNAVAILABLE
  // (retry) once stopped; `work` is not called then.
  absl::Status Submit(size_t bytes, Work work);

  // Ends the running work's turn in its own time, and what waits with UNAVAILABLE. Returns when the
  // thread has ended.
  void Stop();

 private:
  struct Item {
    size_t bytes = 0;
    Work work;
  };
  void Run();

  const Options options_;
  base::Mutex mutex_;
  base::CondVar changed_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  size_t num_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when the rest is there
};

// Where the calls of clients are parsed, rendered and tokenised. gRPC serves all connections on a
// few threads, which a request that takes longer than a moment must not hold:
//
//   up to 4 KiB     at once, on the caller's thread
//   up to 256 KiB   a queue: milliseconds each
//   larger ones     a queue of their own, so that the others need not wait for seconds
//
// Thread-safe.
class WorkLanes {
 public:
  static constexpr size_t kMaxInlineBytes = 4 << 10;
  static constexpr size_t kMaxMediumBytes = 256 << 10;
  struct Options {
    WorkQueue::Options medium = {.max_waiting = 256, .max_bytes = 16 << 20, .nice = 3};
    WorkQueue::Options large = {.max_waiting = 64, .max_bytes = 64 << 20, .nice = 10};
  };

  explicit WorkLanes(const Options& options) : medium_(options.medium), large_(options.large) {}

  // See WorkQueue::Submit. Small work may be called before this returns.
  absl::Status Submit(size_t bytes, WorkQueue::Work work);
  void Stop();

 private:
  WorkQueue medium_;
  WorkQueue large_;
};

}  // namespace shoal::router
