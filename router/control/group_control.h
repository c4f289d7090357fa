#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/control/cost_model.h"
#include "router/control/group.h"
#include "router/control/scheduler.h"

namespace shoal::router {

struct GroupControlOptions {
  GroupOptions group;
  // What the ranks' limits say (blocks, batch, sequence length) is filled in when they are known.
  SchedulerOptions scheduler;
  // How long the steps of those who wait for their next token may be: the prompts in a step are
  // cut so that it lasts about this. Zero: as long as max_batch_tokens make them.
  absl::Duration inter_token_target = absl::ZeroDuration();
};

struct SendStep {  // to every rank
  uint64_t epoch;
  StepPlan plan;
};

// What the shell does for a worker group, in the order given. (FailRequests: it is done; to be
// logged.)
using ControlAction =
    std::variant<ProbeRank, JoinRank, OpenStream, SendStep, AbortRank, FailRequests, ReplaceRank>;

// Of a GroupControl's life.
struct GroupCounters {
  uint64_t num_steps = 0;          // committed
  uint64_t num_prompt_tokens = 0;  // computed by them; cache hits left out
  uint64_t num_generated_tokens = 0;
  absl::Duration step_time;  // while a plan was with the ranks
  // |predicted / measured - 1| of a step's duration, averaged over about the last 64.
  double prediction_error = 0;
};

// All that is decided for one worker group: its Group, its Scheduler, and when the next plan is
// made. A state machine: no thread, clock or I/O; the same calls with the same times give the same
// actions, so a recorded history replays. One thread.
//
// Each call may leave actions and events, which the caller takes and carries out before it waits
// for more. `now` never goes back.
class GroupControl {
 public:
  explicit GroupControl(const GroupControlOptions& options);

  // The first actions. Call once, before all else.
  void Start(absl::Time now);

  // All of the sequences or none. Errors: those of Scheduler::Submit; UNAVAILABLE while there is no
  // group that they could hope for; RESOURCE_EXHAUSTED with a RetryHint when the first token would
  // come after the deadline; infinite when its own prompt alone takes longer.
  absl::Status Submit(absl::Time now, std::vector<Request> sequences);
  // See Scheduler.
  void Cancel(absl::Time now, uint64_t id, absl::string_view reason);
  void Finish(uint64_t id);
  void FailAll(absl::Time now, const absl::Status& status);

  void OnGroupEvent(absl::Time now, const GroupEvent& event);
  // Does what is due by now.
  void OnTimer(absl::Time now);
  // Makes the next plan, if one can be made now. Call when all that has happened is told, and again
  // until it returns false.
  bool Plan(absl::Time now);
  // When OnTimer, then Plan, want to be called if nothing else happens.
  absl::Time NextDeadline() const;

  std::vector<ControlAction> TakeActions() { return std::exchange(actions_, {}); }
  std::vector<Event> TakeEvents() { return std::exchange(events_, {}); }

  const Group& group() const { return group_; }
  // Null until the group was ready for the first time.
  const Scheduler* scheduler() const { return scheduler_.has_value() ? &*scheduler_ : nullptr; }
  const GroupCounters& counters() const { return counters_; }
  void CheckInvariants() const;

 private:
  struct SentPlan {
    absl::Time sent;
    StepWork work;
    uint32_t num_prompt_tokens;
  };

  void Handle(absl::Time now, const GroupEvent& event);
  void Do(absl::Time now, const GroupAction& action);
  void Commit(absl::Time now, const CommitPlan& commit);
  void MakeScheduler();
  void ObserveStep(const StepWork& work, absl::Duration duration);
  absl::Status CheckFirstToken(absl::Time now, const Request& request);
  uint32_t MaxPrefillTokens() const;
  void Send(absl::Time now, StepPlan plan);
  void CountStepTime(absl::Time now);
  void Append(std::vector<Event> events);

  const GroupControlOptions options_;
  Group group_;
  std::optional<Scheduler> scheduler_;
  CostModel cost_;
  double mean_output_ = 0;                // tokens of an answer; 0: none has ended yet
  std::optional<ResultRefused> refusal_;  // of the commit that is under way
  std::optional<StepPlan> plan_;          // being sent
  std::deque<SentPlan> sent_plans_;       // with the ranks, oldest first
  absl::Time last_commit_ = absl::InfinitePast();
  absl::Time counted_until_ = absl::InfinitePast();  // see CountStepTime
  absl::Time plan_at_ = absl::InfiniteFuture();      // when the next plan is due, if not before
  GroupCounters counters_;
  std::vector<ControlAction> actions_;
  std::vector<Event> events_;
};

}  // namespace shoal::router
