#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/thread/mutex.h"

namespace shoal::router {

// What waits for clients to read it, over all calls of a router: bounded together, and in time. A
// thread of its own ends calls; it sleeps while no message is under way to a client.
class Outboxes {
 public:
  struct Options {
    size_t max_bytes = 256 << 20;  // of all calls; beyond, those that hold most end first
    absl::Duration max_write_time = absl::Seconds(60);  // that one message waits for its client
  };
  // Ends a call at once, whether or not its client reads. By the thread of Outboxes, under no lock
  // of it; it may also be called when the call has just ended.
  using EndCall = std::function<void(const absl::Status& why)>;

  // The bytes of one call. Thread-safe.
  class Outbox {
   public:
    Outbox(Outboxes* owner, EndCall end) : owner_(owner), end_(std::move(end)) {}
    ~Outbox();

    // That are not yet given to gRPC.
    void SetPending(size_t bytes);
    // Gives `bytes` to gRPC, until EndWrite.
    void BeginWrite(size_t bytes);
    void EndWrite();

   private:
    friend class Outboxes;
    size_t bytes() const { return pending_bytes_ + written_bytes_; }

    Outboxes* const owner_;
    const EndCall end_;
    // Guarded by the owner's mutex.
    std::list<Outbox*>::iterator position_;
    size_t pending_bytes_ = 0;
    size_t written_bytes_ = 0;
    bool is_writing_ = false;
    absl::Time write_start_;  // on the steady clock
    bool is_ended_ = false;   // `end_` was called or is about to be
  };

  explicit Outboxes(const Options& options);
  // REQUIRES: no outbox is left.
  ~Outboxes();

  // Shared by a call and by the stream that fills it.
  std::shared_ptr<Outbox> Open(EndCall end);

  // Of all calls.
  size_t num_bytes() const;

 private:
  struct Victim {
    EndCall end;
    absl::Status why;
  };
  void Run();
  void Account(Outbox* outbox, size_t pending, size_t written)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool is_full() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Victim> PickVictims() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PickSlow(std::vector<Victim>* victims) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PickLargest(std::vector<Victim>* victims) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::list<Outbox*> outboxes_ ABSL_GUARDED_BY(mutex_);
  size_t num_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_ending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // among them, of calls that were ended
  size_t num_writing_ ABSL_GUARDED_BY(mutex_) = 0;
  bool sleeps_ ABSL_GUARDED_BY(mutex_) = false;  // the thread, until there is a write
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when the rest is there
};

}  // namespace shoal::router
