#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/thread/mutex.h"
#include "router/request_stream.h"

namespace shoal::router {

// The requests that clients wait for, by request_id: keeps ids unique, lists and cancels for
// operators, and tells a drain when the last one has left. Thread-safe.
class RunningRequests {
 public:
  // Takes a request off the list when it goes.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { Reset(); }

    // The id is free from now on and the request off the list; a drain still waits for the ticket.
    // For the moment before the client learns that its request has ended.
    void ReleaseId();

   private:
    friend class RunningRequests;
    Ticket(RunningRequests* owner, std::string id) : owner_(owner), id_(std::move(id)) {}
    void Reset();

    RunningRequests* owner_ = nullptr;
    std::string id_;  // empty: released
  };

  struct Entry {
    std::shared_ptr<RequestStream> stream;  // shared with the call that serves it
    std::string peer;
  };

  // ALREADY_EXISTS while a request of this id runs; UNAVAILABLE (retry) once draining.
  absl::StatusOr<Ticket> Add(std::shared_ptr<RequestStream> stream, std::string peer);

  // By request_id.
  std::vector<Entry> List() const;

  // NOT_FOUND when no request of this id runs.
  absl::Status Cancel(absl::string_view request_id, absl::string_view reason);

  // From now on Add refuses. `reason` is not empty.
  void StartDraining(absl::string_view reason);
  // Empty while not draining.
  std::string draining_reason() const;
  // UNAVAILABLE (retry) once draining.
  absl::Status CheckAccepting() const;

  // Waits until no ticket is out; false after `timeout`, which is finite.
  bool WaitUntilEmpty(absl::Duration timeout);

  // Ends all with `why`.
  void CancelAll(const absl::Status& why);

 private:
  void Remove(const std::string& id);
  void Leave();
  absl::Status CheckAcceptingLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::map<std::string, Entry, std::less<>> entries_ ABSL_GUARDED_BY(mutex_);
  size_t num_tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string draining_reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::router
