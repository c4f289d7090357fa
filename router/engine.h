#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/control/request.h"
#include "router/control/scheduler.h"
#include "router/served_model.h"

namespace shoal::v1 {
class TraceStepsResponse;
}

namespace shoal::router {

// Receives what happens to the sequences of one client's request. Called by one thread at a time,
// never under a lock, and must not block.
class SequenceSink {
 public:
  virtual ~SequenceSink() = default;

  // The fate of Engine::Submit, once and first. Not OK: the engine knows nothing of the sequences,
  // and no event follows.
  virtual void OnAdmission(const absl::Status& status) = 0;

  // See Event: every admitted sequence gets exactly one kFinished, unless Engine::Finish ended it.
  virtual void OnEvent(const Event& event) = 0;
};

enum class RankState { kConnecting, kLoading, kJoining, kReady, kFailed };

// One rank as an operator sees it.
struct RankStatus {
  uint32_t rank = 0;
  std::string address;
  std::string worker_id;
  RankState state = RankState::kConnecting;
  std::string state_reason;
  std::string backend;
  std::string version;
  uint32_t pid = 0;
  uint64_t load_bytes_done = 0;
  uint64_t load_bytes_total = 0;
  uint64_t weight_bytes = 0;
  uint64_t kv_cache_bytes = 0;
  absl::Duration compute_time;     // and sampling: summed over the steps of this router's life
  absl::Duration wait_peers_time;  // for shards and stages, likewise
};

// A worker group as an operator sees it. Counters are of this router's life.
struct EngineStatus {
  uint64_t epoch = 0;
  uint32_t tensor_parallel_size = 1;
  uint32_t pipeline_parallel_size = 1;
  uint32_t num_blocks = 0;
  uint64_t num_steps = 0;
  uint64_t num_prompt_tokens = 0;  // computed; cache hits left out
  uint64_t num_generated_tokens = 0;
  absl::Duration step_time;     // while steps were with the ranks
  double prediction_error = 0;  // see GroupCounters
  uint64_t num_finished = 0;    // sequences
  uint64_t num_rejected = 0;    // submissions
  SchedulerStats scheduler;
  std::vector<RankStatus> ranks;
};

// `response` is null unless `status` is OK; the callee may move its content away.
using TraceDone = std::function<void(const absl::Status& status, v1::TraceStepsResponse* response)>;

// What generates: a worker group behind its shell, or a puppet in tests. Thread-safe; no call
// blocks.
class Engine {
 public:
  virtual ~Engine() = default;

  // The model served; null while it loads.
  virtual std::shared_ptr<const ServedModel> model() const = 0;

  // OK when new requests would run at once; else UNAVAILABLE with the reason.
  virtual absl::Status Readiness() const = 0;
  // OK when new requests are taken: when it is ready, and while it recovers from a lost rank, when
  // they wait for its return; else UNAVAILABLE with the reason.
  virtual absl::Status Admission() const = 0;

  // `count` consecutive ids that were never given out; returns the first.
  virtual uint64_t AllocateIds(uint32_t count) = 0;

  // All of the sequences or none. `sink` hears of their fate from another thread, or from this one
  // before Submit returns; the engine keeps it until the last of them has ended. Errors it may
  // hear: those of Scheduler::Submit, UNAVAILABLE.
  virtual void Submit(std::vector<Request> sequences, std::shared_ptr<SequenceSink> sink) = 0;

  // Ends a sequence with kCancelled. Unknown ids are ignored: the sequence may just have ended.
  virtual void Cancel(uint64_t id, absl::string_view reason) = 0;

  // Ends a sequence whose text is complete; its sink hears no more of it. Unknown ids are ignored.
  virtual void Finish(uint64_t id) = 0;

  // A recent snapshot.
  virtual EngineStatus status() const = 0;

  // Records the next `num_steps` steps of the router and of its ranks, for at most `timeout`, and
  // then calls `done`, once, on another thread or before it returns. FAILED_PRECONDITION: another
  // trace runs. Returns a name for AbandonTrace, or 0 when `done` was called.
  virtual uint64_t TraceSteps(uint32_t num_steps, absl::Duration timeout, TraceDone done) = 0;
  // Nobody waits for the trace any more: it ends soon.
  virtual void AbandonTrace(uint64_t id) = 0;
};

}  // namespace shoal::router
