#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/control/plan.h"

namespace shoal::router {

// What a rank says about itself before it joins.
struct RankInfo {
  std::string instance_id;  // new at every process start
  std::string version;
  uint32_t protocol_version = 0;
  std::string model_fingerprint;
  std::string numerics_id;  // backend, kernel revision, KV dtype: same id, same bits
  uint64_t highest_epoch = 0;
  // Limits. Ranks may have room for different numbers of blocks: the group has the smallest.
  uint32_t num_blocks = 0;
  uint32_t block_size = 0;  // tokens
  uint32_t max_batch_tokens = 0;
  uint32_t max_batch_seqs = 0;
  uint32_t max_seq_len = 0;
};

struct GroupOptions {
  uint32_t tensor_parallel_size = 1;
  uint32_t pipeline_parallel_size = 1;
  std::string version;
  uint32_t protocol_version = 0;
  absl::Duration join_timeout = absl::Seconds(30);
  absl::Duration recovery_timeout = absl::Seconds(60);
  absl::Duration min_step_timeout = absl::Seconds(5);
  double step_timeout_factor = 10;  // of the predicted duration
  // The first steps of a group touch memory for the first time, and nothing predicts them. A later
  // epoch has the predictions of the one before.
  uint32_t num_warmup_steps = 3;
  absl::Duration warmup_step_timeout = absl::Seconds(60);
  absl::Duration min_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(1);
};

// --- What happens to a group. `epoch` is that of the action which this answers; an answer to an
// older epoch changes nothing. ---

struct RankAnswered {  // to ProbeRank
  uint32_t rank;
  RankInfo info;
};
struct RankFailed {  // ProbeRank (epoch 0), JoinRank or OpenStream did not work
  uint32_t rank;
  uint64_t epoch;
  absl::Status status;
};
struct RankJoined {
  uint32_t rank;
  uint64_t epoch;
};
struct StreamOpened {
  uint32_t rank;
  uint64_t epoch;
};
struct StreamClosed {
  uint32_t rank;
  uint64_t epoch;
  absl::Status status;
};
struct PlanMade {  // REQUIRES: the group is ready
  uint64_t step;
  uint64_t state_hash;
  absl::Duration prediction;  // of the step's duration; zero if there is none
};
struct StepReplied {
  uint32_t rank;
  uint64_t epoch;
  uint64_t step;
  uint64_t state_hash;
  uint64_t token_hash;             // ranks of the last stage
  std::vector<RowOutput> outputs;  // first rank of the last stage
  // That the rank took for the step, its waits for peers included; in a pipeline without them: a
  // stage waits for other steps. Zero: not known.
  absl::Duration duration = absl::ZeroDuration();
};
struct ResultRefused {  // by Scheduler::CommitStep
  absl::Status status;
};
struct TimerFired {};  // NextDeadline() has come

using GroupEvent = std::variant<RankAnswered, RankFailed, RankJoined, StreamOpened, StreamClosed,
                                PlanMade, StepReplied, ResultRefused, TimerFired>;

// --- What the shell does for a group, in the order given. ---

struct ProbeRank {  // connect, ask for its RankInfo
  uint32_t rank;
};
struct JoinRank {  // all ranks of a group meet each other
  uint32_t rank;
  uint64_t epoch;
};
struct OpenStream {
  uint32_t rank;
  uint64_t epoch;
};
struct SendPlan {  // to every rank
  uint64_t epoch;
  uint64_t step;
};
struct AbortRank {  // unblock it and close its stream, if it still lives
  uint32_t rank;
  uint64_t epoch;
};
struct CommitPlan {  // Scheduler::CommitStep
  StepResult result;
  absl::Duration duration;  // of the rank that took longest; zero: not known
};
struct ReplayAll {};   // Scheduler::Reset
struct FailRequests {  // Scheduler::FailAll
  absl::Status status;
};
struct ReplaceRank {  // it hangs: whoever runs its process should kill it and start another
  uint32_t rank;
};

using GroupAction = std::variant<ProbeRank, JoinRank, OpenStream, SendPlan, AbortRank, CommitPlan,
                                 ReplayAll, FailRequests, ReplaceRank>;

// The life of a worker group: tp x pp ranks that only work together. A state machine: no thread,
// clock or I/O. One thread.
//
//              every rank answered, all agree        all joined, all streams open
//   probing ----------------------------> joining ----------------------------> ready
//      ^  ^                                  |                                    |
//      |  +----- a failure, join timeout ----+                                    |
//      +------------ stream closed, step deadline missed, hashes differ ----------+
//
// Each attempt to join has a new epoch, above all that the ranks have seen. With an epoch die the
// ranks' KV and their meeting; when a ready group is lost, the survivors are aborted, the sequences
// reset (ReplayAll), and the ranks probed again at once. Attempts that never got to commit a step
// back off. Who is not ready for recovery_timeout fails its requests with UNAVAILABLE and keeps
// trying.
//
// A rank that is connected and lets a probe's deadline pass hangs; one that is dead fails at once.
//
// Steps form a queue: every rank answers them in order, and each commits when all have answered.
// The clock of a step starts when the one before is committed.
class Group {
 public:
  enum class State { kProbing, kJoining, kReady };

  explicit Group(const GroupOptions& options);

  // The first actions. Call once.
  std::vector<GroupAction> Start(absl::Time now);
  std::vector<GroupAction> OnEvent(absl::Time now, const GroupEvent& event);
  // When TimerFired is due.
  absl::Time NextDeadline() const;

  State state() const { return state_; }
  // Whether a request sent now may hope: ready, or lost and not yet given up.
  bool accepts_requests() const {
    return state_ == State::kReady ||
           (identity_.has_value() && recovery_deadline_ != absl::InfiniteFuture());
  }
  size_t num_steps_in_flight() const { return steps_.size(); }
  uint64_t epoch() const { return epoch_; }
  uint32_t num_ranks() const { return static_cast<uint32_t>(ranks_.size()); }
  // What the group agreed on: limits, model, numerics. REQUIRES: it was ready once.
  const RankInfo& identity() const { return *identity_; }
  // Why it is not ready: the last failure, with the name of the rank.
  const absl::Status& last_failure() const { return last_failure_; }
  uint64_t num_losses() const { return num_losses_; }

 private:
  enum class Phase { kIdle, kProbing, kAnswered, kJoining, kJoined, kOpen };
  struct Rank {
    Phase phase = Phase::kIdle;
    absl::Time probe_at = absl::InfinitePast();  // kIdle
    absl::Duration backoff = absl::ZeroDuration();
    RankInfo info;
  };
  struct Step {
    PlanMade plan;
    absl::Time deadline;  // infinite while a step before it runs
    std::vector<bool> has_replied;
    uint32_t num_missing;
    std::optional<uint64_t> token_hash;
    absl::Duration duration;
    std::vector<RowOutput> outputs;
  };
  using Actions = std::vector<GroupAction>;

  void On(absl::Time now, const RankAnswered& event, Actions* actions);
  void On(absl::Time now, const RankFailed& event, Actions* actions);
  void On(absl::Time now, const RankJoined& event, Actions* actions);
  void On(absl::Time now, const StreamOpened& event, Actions* actions);
  void On(absl::Time now, const StreamClosed& event, Actions* actions);
  void On(absl::Time now, const PlanMade& event, Actions* actions);
  void On(absl::Time now, const StepReplied& event, Actions* actions);
  void On(absl::Time now, const ResultRefused& event, Actions* actions);
  void On(absl::Time now, const TimerFired& event, Actions* actions);

  void ProbeDueRanks(absl::Time now, Actions* actions);
  absl::Status CheckAgreement() const;
  Step* NextStepOf(uint32_t rank);
  absl::Status CheckReply(const StepReplied& reply, const Step* step) const;
  void Join(absl::Time now, Actions* actions);
  void Lose(absl::Time now, absl::Status why, Actions* actions);
  bool AllRanksAre(Phase phase) const;
  bool IsInLastStage(uint32_t rank) const;
  absl::Duration StepTimeout(absl::Duration prediction) const;
  void StartClock(absl::Time now);

  const GroupOptions options_;
  State state_ = State::kProbing;
  std::vector<Rank> ranks_;
  uint64_t epoch_ = 0;
  std::optional<RankInfo> identity_;
  absl::Time join_deadline_ = absl::InfiniteFuture();
  absl::Time recovery_deadline_ = absl::InfiniteFuture();
  absl::Duration backoff_ = absl::ZeroDuration();  // before the next attempt, if this one fails
  std::deque<Step> steps_;                         // with the ranks, oldest first
  uint64_t num_steps_ = 0;                         // of this epoch
  bool is_warm_ = false;                           // an epoch got beyond its first steps
  absl::Status last_failure_;
  uint64_t num_losses_ = 0;
};

}  // namespace shoal::router
