#include "router/work_lanes.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "router/rpc_status.h"

namespace shoal::router {
namespace {

// Work on this much leaves holes in the heap that are worth giving back.
constexpr size_t kTrimBytes = 1 << 20;

// Linux sets the priority of the one thread named by its id.
void LowerPriority(int nice) {
  if (setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice) != 0) {
    PLOG(WARNING) << "cannot lower the priority of a thread for large requests";
  }
}

}  // namespace

WorkQueue::WorkQueue(const Options& options) : options_(options), thread_([this] { Run(); }) {}

absl::Status WorkQueue::Submit(size_t bytes, Work work) {
  base::MutexLock lock(&mutex_);
  if (stops_) return Retryable(absl::UnavailableError("the router is shutting down"));
  if (items_.size() >= options_.max_waiting || num_bytes_ + bytes > options_.max_bytes) {
    return Retryable(absl::ResourceExhaustedError(absl::StrCat(
        "a request of ", bytes, " bytes has to wait behind ", items_.size(), " large ones; with ",
        num_bytes_, " bytes, and at most ", options_.max_waiting, " requests of ",
        options_.max_bytes, " bytes may wait: send smaller ones, or later")));
  }
  num_bytes_ += bytes;
  items_.push_back({bytes, std::move(work)});
  changed_.Signal();
  return absl::OkStatus();
}

void WorkQueue::Stop() {
  {
    base::MutexLock lock(&mutex_);
    stops_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void WorkQueue::Run() {
  LowerPriority(options_.nice);
  size_t bytes_since_trim = 0;
  while (true) {
    Item item;
    bool is_stopping = false;
    {
      base::MutexLock lock(&mutex_);
      while (items_.empty() && !stops_) changed_.Wait(&mutex_);
      if (items_.empty()) return;
      item = std::move(items_.front());
      items_.pop_front();
      is_stopping = stops_;
    }
    item.work(is_stopping ? Retryable(absl::UnavailableError("the router is shutting down"))
                          : absl::OkStatus());
    item.work = nullptr;
    bytes_since_trim += item.bytes;
    bool is_idle = false;
    {
      base::MutexLock lock(&mutex_);
      num_bytes_ -= item.bytes;
      is_idle = items_.empty();
    }
    if (is_idle && bytes_since_trim >= kTrimBytes) {
      malloc_trim(0);
      bytes_since_trim = 0;
    }
  }
}

absl::Status WorkLanes::Submit(size_t bytes, WorkQueue::Work work) {
  if (bytes > kMaxMediumBytes) return large_.Submit(bytes, std::move(work));
  if (bytes > kMaxInlineBytes) return medium_.Submit(bytes, std::move(work));
  work(absl::OkStatus());
  return absl::OkStatus();
}

void WorkLanes::Stop() {
  medium_.Stop();
  large_.Stop();
}

}  // namespace shoal::router
