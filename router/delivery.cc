#include "router/delivery.h"

#include <sys/resource.h>
#include <unistd.h>

#include <iterator>
#include <utility>

#include "glog/logging.h"

namespace shoal::router {
namespace {

// Below the thread that plans steps. Linux sets the priority of the one thread named by its id.
void LowerPriority() {
  constexpr int kNice = 2;
  if (setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice) != 0) {
    PLOG(WARNING) << "cannot lower the priority of the delivery thread";
  }
}

}  // namespace

Delivery::Delivery() : thread_([this] { Run(); }) {}

void Delivery::Stop() {
  {
    base::MutexLock lock(&mutex_);
    stops_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Delivery::Post(std::vector<Item>* items, uint64_t step) {
  if (items->empty()) return;
  base::MutexLock lock(&mutex_);
  while (pending_.size() >= kMaxPending) changed_.Wait(&mutex_);
  pending_step_ = step;
  if (pending_.empty()) {
    pending_.swap(*items);
  } else {
    pending_.insert(pending_.end(), std::make_move_iterator(items->begin()),
                    std::make_move_iterator(items->end()));
    items->clear();
  }
  changed_.SignalAll();
}

void Delivery::Run() {
  LowerPriority();
  std::vector<Item> batch;
  uint64_t step = 0;
  while (true) {
    {
      base::MutexLock lock(&mutex_);
      while (pending_.empty() && !stops_) changed_.Wait(&mutex_);
      if (pending_.empty()) return;
      batch.swap(pending_);
      step = pending_step_;
      changed_.SignalAll();
    }
    const base::RecordedStep recorded(&recorder_, step);
    const int64_t begin_ns = recorder_.is_recording() ? base::UnixNanos() : 0;
    for (const Item& item : batch) {
      if (const auto* event = std::get_if<Event>(&item.what)) {
        item.sink->OnEvent(*event);
      } else {
        item.sink->OnAdmission(std::get<absl::Status>(item.what));
      }
    }
    batch.clear();
    if (recorder_.is_recording()) recorder_.Add(0, begin_ns, base::UnixNanos());
  }
}

}  // namespace shoal::router
