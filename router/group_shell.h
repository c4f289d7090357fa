#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/thread/mutex.h"
#include "router/completion_loop.h"
#include "router/control/group_control.h"
#include "router/delivery.h"
#include "router/engine.h"
#include "router/rank_link.h"
#include "router/recorded_control.h"
#include "router/shell_inbox.h"
#include "router/step_tracer.h"
#include "shoal/worker/v1/worker.pb.h"

namespace shoal::router {

struct GroupShellOptions {
  std::vector<std::string> addresses;  // [rank]
  GroupOptions group;                  // version and protocol included
  SchedulerOptions scheduler;          // see GroupControlOptions
  absl::Duration inter_token_target;   // likewise
  worker::v1::LoadShardRequest load;   // but for the rank
  std::string model_name;              // empty: the model's own
  std::string owner_id;                // unique to this process
  std::string token;                   // of the cluster, see WorkerClient
  bool take_over = false;              // from another router whose streams live
  std::function<absl::Time()> clock;   // any thread
  std::function<uint64_t()> random;    // the shell's thread
  // Health has changed. On the shell's thread; must not block, nor call the shell.
  std::function<void(bool is_ready)> on_readiness = [](bool) {};
  // A rank hangs; `pid` is the process's, on its host. Likewise.
  std::function<void(uint32_t rank, uint32_t pid)> on_hung_rank = [](uint32_t, uint32_t) {};
};

// The shell around one worker group: the thread that owns its GroupControl and its connections,
// with the clock and the I/O that this state machine does not have.
//
//   clients --Submit, Cancel, Finish--> inbox --+
//   ranks --replies-----------------------------+--> thread: GroupControl --plans--> ranks
//   timers -------------------------------------+                  +--events--> Delivery
//
// The thread sleeps in its CompletionLoop until one of the three comes, takes all that is there,
// plans, sends the plan to every rank, and only then hands on the events of the last step.
class GroupShell final : public Engine {
 public:
  // Starts connecting. REQUIRES: as many addresses as the group has ranks.
  // With a `recorder`, writes down what the control is told and decides.
  explicit GroupShell(GroupShellOptions options,
                      std::unique_ptr<HistoryRecorder> recorder = nullptr);
  // Stops, if Stop was not called.
  ~GroupShell() override;

  // Waits until the group is ready for the first time. An error that trying again will not cure
  // ends the wait at once; DEADLINE_EXCEEDED, with the last failure, after `timeout` (finite);
  // CANCELLED after AbandonWait or Stop.
  absl::Status WaitUntilReady(absl::Duration timeout);
  // Ends that wait; otherwise of no effect. Any thread.
  void AbandonWait();

  // Ends what still runs with UNAVAILABLE, closes all connections, joins the thread. Once it
  // returned, no sink is called any more.
  void Stop();

  std::shared_ptr<const ServedModel> model() const override;
  absl::Status Readiness() const override;
  absl::Status Admission() const override;
  uint64_t AllocateIds(uint32_t count) override { return next_id_.fetch_add(count); }
  void Submit(std::vector<Request> sequences, std::shared_ptr<SequenceSink> sink) override;
  void Cancel(uint64_t id, absl::string_view reason) override;
  void Finish(uint64_t id) override;
  EngineStatus status() const override;
  uint64_t TraceSteps(uint32_t num_steps, absl::Duration timeout, TraceDone done) override {
    return tracer_.Start(num_steps, timeout, std::move(done));
  }
  void AbandonTrace(uint64_t id) override { tracer_.Abandon(id); }

 private:
  // For the trace: when its making began, when it was made and when it was sent, of Unix time.
  struct SentPlan {
    uint64_t step;
    int64_t begin_ns;
    int64_t made_ns;
    int64_t sent_ns;
    base::BatchSize batch;
  };

  void Run();
  void HandleInbox(ShellInbox::Contents contents);
  void HandleSubmission(ShellInbox::Submission submission);
  void HandleGroupEvents();
  void HandleGroupEvent(const GroupEvent& event);
  void NoteGroupState();
  void LogNewFailure();
  // What the last call of the control asks for.
  void CarryOut();
  void Perform(const ProbeRank& action);
  void Perform(const JoinRank& action);
  void Perform(const OpenStream& action);
  void Perform(const SendStep& action);
  void Perform(const AbortRank& action);
  void Perform(const FailRequests& action);
  void Perform(const ReplaceRank& action);
  void PlanNextSteps();
  // The group is ready for the first time: its limits are known.
  absl::Status MakeModel();
  void QueueEvents(std::vector<Event> events);
  void Publish();
  void CheckFatal();
  void ShutDown();

  const GroupShellOptions options_;
  std::atomic<uint64_t> next_id_{1};
  ShellInbox inbox_;
  CompletionLoop loop_;

  // --- The thread's own. ---
  RecordedControl control_;
  std::vector<std::unique_ptr<RankLink>> links_;                        // [rank]
  std::deque<GroupEvent> group_events_;                                 // not handled yet
  absl::flat_hash_map<uint64_t, std::shared_ptr<SequenceSink>> sinks_;  // by sequence; see Engine
  std::vector<Delivery::Item> outgoing_;
  Delivery delivery_;
  base::SpanRecorder recorder_;
  worker::v1::ExecuteRequest plan_message_;  // reused from step to step
  int64_t plan_begin_ns_ = 0;                // of the plan that is being made
  std::deque<SentPlan> sent_plans_;          // with the ranks, oldest first
  uint64_t committed_step_ = 0;              // the last one
  uint64_t num_losses_ = 0;                  // of the group, that were seen
  uint64_t ready_epoch_ = 0;                 // likewise
  uint64_t num_finished_ = 0;                // sequences
  uint64_t num_rejected_ = 0;                // submissions
  uint64_t rendezvous_epoch_ = 0;
  std::string rendezvous_;
  const absl::Time start_;
  absl::Status logged_failure_;
  bool logged_as_warning_ = false;
  absl::Status fatal_;  // ends the first wait for readiness

  // --- Shared with other threads. ---
  StepTracer tracer_;  // of recorder_
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::shared_ptr<const ServedModel> model_ ABSL_GUARDED_BY(mutex_);
  absl::Status readiness_ ABSL_GUARDED_BY(mutex_);
  absl::Status admission_ ABSL_GUARDED_BY(mutex_);
  bool was_ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_wait_over_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status start_failure_ ABSL_GUARDED_BY(mutex_);  // see fatal_
  EngineStatus status_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: starts when the rest is there
};

}  // namespace shoal::router
