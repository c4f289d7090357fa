#include "router/completion_loop.h"

#include "glog/logging.h"
#include "grpc/support/time.h"

namespace shoal::router {

CompletionLoop::~CompletionLoop() {
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    CHECK(tag == &wake_tag_) << "an operation outlives the loop";
  }
}

void CompletionLoop::RunFor(absl::Duration timeout) {
  const gpr_timespec until =
      timeout == absl::InfiniteDuration()
          ? gpr_inf_future(GPR_CLOCK_MONOTONIC)
          : gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                         gpr_time_from_nanos(absl::ToInt64Nanoseconds(timeout), GPR_TIMESPAN));
  if (!RunOne(until)) return;
  while (RunOne(gpr_time_0(GPR_CLOCK_MONOTONIC))) {
  }
}

bool CompletionLoop::RunOne(gpr_timespec deadline) {
  void* tag = nullptr;
  bool ok = false;
  if (queue_.AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT) return false;
  static_cast<CompletionTag*>(tag)->OnComplete(ok);
  return true;
}

void CompletionLoop::Wake() {
  // One alarm at a time. A waker that finds one pending is served by it: its completion is seen
  // before the loop looks at what the waker left.
  if (is_wake_pending_.exchange(true)) return;
  alarm_.Set(&queue_, gpr_time_0(GPR_CLOCK_REALTIME), &wake_tag_);
}

}  // namespace shoal::router
