#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "router/control/group_control.h"
#include "tests/simulation/client_ledger.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/rank_fleet.h"
#include "tests/simulation/report.h"

namespace shoal::simulation {

// One life of a router: the GroupControl under test and what GroupShell is around it, a loop that
// takes all that has come, plans, sends, and tells the clients. Watches every call: what the
// control says is compared with what it was told.
class SimulatedRouter {
 public:
  struct Callbacks {
    std::function<void(const ClientPlan&, const absl::Status&)> on_refused;
    std::function<void(Stream*)> on_tokens;
  };

  SimulatedRouter(const Scenario* scenario, EventQueue* queue, RankFleet* fleet,
                  ClientLedger* ledger, Report* report, uint64_t owner, Callbacks callbacks);
  ~SimulatedRouter();

  // What other threads of a router would leave for its loop.
  void Submit(const ClientPlan& client);
  void Cancel(uint64_t id);
  void Finish(uint64_t id);
  // Whether it has not looked at the client's submission yet.
  bool has_pending(const ClientPlan& client) const;
  // Ends what still runs.
  void Stop();

  // REQUIRES: nothing is left to happen.
  void CheckIdle();

 private:
  struct Input {
    const ClientPlan* submits = nullptr;
    uint64_t cancels = 0;
    uint64_t finishes = 0;
  };
  // Of a slot: the stream, if it still is what this id names.
  struct Occupant {
    Stream* stream;
    uint64_t id;
    bool is_live() const { return stream->id == id; }
  };
  // A plan with the ranks.
  struct Sent {
    std::shared_ptr<const SentStep> step;
    std::vector<Occupant> rows;
    std::set<uint32_t> replied;
  };

  void Wake();
  void WakeAt(absl::Time time);
  void Loop();
  void Handle(const Input& input);
  void HandleSubmission(const ClientPlan& client);
  void Handle(const router::GroupEvent& event);
  bool NoteReply(const router::StepReplied& reply);
  void NoteState();
  // After every call of the control.
  void Check();
  void CarryOutActions();
  void CarryOut(const router::ProbeRank& action);
  void CarryOut(const router::JoinRank& action);
  void CarryOut(const router::OpenStream& action);
  void CarryOut(const router::SendStep& action);
  void CarryOut(const router::AbortRank& action);
  void CarryOut(const router::FailRequests& action);
  void CarryOut(const router::ReplaceRank& action);
  Sent Watch(const router::SendStep& action);
  void WatchStart(const router::SequenceStart& start);
  bool may_be_unavailable() const;
  void Violation(std::string what) { report_->Violation(std::move(what)); }
  absl::Time now() const { return queue_->now(); }
  template <typename... Words>
  void Note(const Words&... words) {
    report_->Note(now(), words...);
  }

  const Scenario& scenario_;
  EventQueue* const queue_;
  RankFleet* const fleet_;
  ClientLedger* const ledger_;
  Report* const report_;
  const uint64_t owner_;
  const Callbacks callbacks_;
  Random random_;
  router::GroupControl control_;
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);  // asked by what it has scheduled

  std::vector<Input> inbox_;
  std::deque<router::GroupEvent> group_events_;
  bool is_awake_ = false;  // a loop is scheduled
  absl::Time wakes_at_ = absl::InfiniteFuture();
  bool is_stopping_ = false;
  uint64_t next_id_;

  std::vector<router::ControlAction> actions_;
  std::deque<Sent> sent_;                        // of the epoch, not committed
  std::map<uint32_t, Occupant> slots_;           // of the epoch
  std::map<uint32_t, std::string> block_salts_;  // of the epoch: whose tokens a block has
  std::set<uint32_t> opened_;                    // ranks, of the epoch
  uint64_t joined_epoch_ = 0;
  uint64_t aborted_epoch_ = 0;
  std::map<uint32_t, uint64_t> highest_epochs_;  // that each rank told last
  uint64_t num_losses_ = 0;
  absl::Time unready_since_;
};

}  // namespace shoal::simulation
