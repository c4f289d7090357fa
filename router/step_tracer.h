#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/thread/mutex.h"
#include "base/thread/span_recorder.h"
#include "grpcpp/client_context.h"
#include "router/engine.h"

namespace shoal::router {

// Gathers what a router and its ranks do in the next steps. A trace has threads of its own, one for
// each process: operators ask for it now and then, and the group's thread is not to wait.
class StepTracer {
 public:
  // The names of the router's spans. All but kDeliver are written by the owner of `recorder`, in
  // the step that they belong to; a batch of Delivery is the step's that it came of.
  enum Name : uint32_t { kPlan, kSend, kInFlight, kCommit, kDeliver };

  // The recorders outlive this. `token` as for WorkerClient.
  StepTracer(std::vector<std::string> addresses, std::string token, base::SpanRecorder* recorder,
             base::SpanRecorder* delivery_recorder);
  ~StepTracer();

  // See Engine::TraceSteps and AbandonTrace. Thread-safe.
  uint64_t Start(uint32_t num_steps, absl::Duration timeout, TraceDone done);
  void Abandon(uint64_t id);

  // Abandons what runs, and waits for its end; refuses what comes after.
  void Stop();

 private:
  struct Trace;

  void Run(Trace* trace);
  // The router's own spans, by begin.
  absl::StatusOr<std::vector<base::Span>> TraceRouter(Trace* trace);
  absl::Status TraceRank(Trace* trace, size_t rank);
  // It ends soon, whether or not its calls have begun.
  static void Cancel(Trace* trace);

  const std::vector<std::string> addresses_;  // [rank]
  const std::string token_;
  base::SpanRecorder* const recorder_;
  base::SpanRecorder* const delivery_recorder_;
  base::Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<Trace> trace_ ABSL_GUARDED_BY(mutex_);  // running, or ended and not yet joined
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shoal::router
