#pragma once

#include <atomic>

#include "absl/time/time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/completion_queue.h"

namespace shoal::router {

// What a completion queue gives back. The pending operation refers to the tag, which stays alive
// until OnComplete.
class CompletionTag {
 public:
  virtual ~CompletionTag() = default;
  // On the thread of the loop. `ok`: the operation had its effect.
  virtual void OnComplete(bool ok) = 0;
};

// A gRPC completion queue and the one thread that waits on it: everything that can wake the thread
// comes through here, so an idle group costs nothing. Wake() is for any thread, the rest for the
// loop's own.
class CompletionLoop {
 public:
  CompletionLoop() : wake_tag_(this) {}
  // REQUIRES: no operation but a wake is pending.
  ~CompletionLoop();
  CompletionLoop(const CompletionLoop&) = delete;
  CompletionLoop& operator=(const CompletionLoop&) = delete;

  // Waits for a completion for up to `timeout` and hands it to its tag, then all others that are
  // there. Also returns, soon, after a Wake().
  void RunFor(absl::Duration timeout);

  void Wake();

  grpc::CompletionQueue* queue() { return &queue_; }

 private:
  class WakeTag final : public CompletionTag {
   public:
    explicit WakeTag(CompletionLoop* loop) : loop_(loop) {}
    void OnComplete(bool ok) override { loop_->is_wake_pending_.store(false); }

   private:
    CompletionLoop* const loop_;
  };

  // Returns false when nothing came until `deadline`.
  bool RunOne(gpr_timespec deadline);

  grpc::CompletionQueue queue_;
  grpc::Alarm alarm_;
  WakeTag wake_tag_;
  std::atomic<bool> is_wake_pending_{false};
};

}  // namespace shoal::router
