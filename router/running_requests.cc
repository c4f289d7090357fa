#include "router/running_requests.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "router/rpc_status.h"

namespace shoal::router {
RunningRequests::Ticket& RunningRequests::Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    Reset();
    owner_ = std::exchange(other.owner_, nullptr);
    id_ = std::move(other.id_);
  }
  return *this;
}

void RunningRequests::Ticket::ReleaseId() {
  if (owner_ != nullptr && !id_.empty()) owner_->Remove(std::exchange(id_, ""));
}

void RunningRequests::Ticket::Reset() {
  ReleaseId();
  if (owner_ != nullptr) std::exchange(owner_, nullptr)->Leave();
}

absl::StatusOr<RunningRequests::Ticket> RunningRequests::Add(std::shared_ptr<RequestStream> stream,
                                                             std::string peer) {
  const std::string id = stream->request().request_id;
  base::MutexLock lock(&mutex_);
  if (absl::Status status = CheckAcceptingLocked(); !status.ok()) return status;
  const bool inserted = entries_.emplace(id, Entry{std::move(stream), std::move(peer)}).second;
  if (!inserted) {
    return absl::AlreadyExistsError(absl::StrCat(
        "request_id \"", id, "\" is still running: choose another, or leave it empty"));
  }
  ++num_tickets_;
  return Ticket(this, id);
}

std::vector<RunningRequests::Entry> RunningRequests::List() const {
  base::MutexLock lock(&mutex_);
  std::vector<Entry> entries;
  for (const auto& [id, entry] : entries_) entries.push_back(entry);
  return entries;
}

absl::Status RunningRequests::Cancel(absl::string_view request_id, absl::string_view reason) {
  std::shared_ptr<RequestStream> stream;
  {
    base::MutexLock lock(&mutex_);
    const auto it = entries_.find(std::string(request_id));
    if (it == entries_.end()) {
      return absl::NotFoundError(absl::StrCat("no request \"", request_id, "\" is running"));
    }
    stream = it->second.stream;
  }
  stream->Cancel(absl::CancelledError(
      absl::StrCat("cancelled by an operator", reason.empty() ? "" : ": ", reason)));
  return absl::OkStatus();
}

void RunningRequests::StartDraining(absl::string_view reason) {
  base::MutexLock lock(&mutex_);
  draining_reason_ = std::string(reason);
}

std::string RunningRequests::draining_reason() const {
  base::MutexLock lock(&mutex_);
  return draining_reason_;
}

absl::Status RunningRequests::CheckAccepting() const {
  base::MutexLock lock(&mutex_);
  return CheckAcceptingLocked();
}

absl::Status RunningRequests::CheckAcceptingLocked() const {
  if (draining_reason_.empty()) return absl::OkStatus();
  return Retryable(absl::UnavailableError(absl::StrCat("draining: ", draining_reason_)));
}

bool RunningRequests::WaitUntilEmpty(absl::Duration timeout) {
  const auto start = std::chrono::steady_clock::now();
  base::MutexLock lock(&mutex_);
  while (num_tickets_ > 0) {
    const absl::Duration left =
        timeout - absl::FromChrono(std::chrono::steady_clock::now() - start);
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(&mutex_, left);
  }
  return true;
}

void RunningRequests::CancelAll(const absl::Status& why) {
  for (const Entry& entry : List()) entry.stream->Cancel(why);
}

void RunningRequests::Remove(const std::string& id) {
  // The stream goes after the lock: it may be the last to hold a model.
  Entry removed;
  base::MutexLock lock(&mutex_);
  const auto it = entries_.find(id);
  removed = std::move(it->second);
  entries_.erase(it);
}

void RunningRequests::Leave() {
  base::MutexLock lock(&mutex_);
  if (--num_tickets_ == 0) changed_.SignalAll();
}

}  // namespace shoal::router
