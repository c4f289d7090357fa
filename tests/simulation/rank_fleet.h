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
#include "absl/time/time.h"
#include "router/control/group.h"
#include "tests/router_control/puppet_rank.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/report.h"
#include "tests/simulation/scenario.h"

namespace shoal::simulation {

// One plan on its way to the ranks.
struct SentStep {
  uint64_t epoch = 0;
  router::StepPlan plan;
  std::set<uint32_t> killers;  // clients whose poison requests it computes
};

// The ranks of one worker group, the network between them and the router, and a supervisor that
// starts dead ranks again: all that is not under test. A rank's rules are those of the worker's
// service: an epoch must be above all that the rank has seen, a living stream of another owner
// keeps it, plans of another epoch end the stream, shards of a stage only get through a step
// together.
//
// What the network may do it does: messages of one stream keep their order, calls overtake each
// other and the stream, what a dying rank has sent last arrives or does not, answers of a stream
// that the router closed may still come.
class RankFleet {
 public:
  using Post = std::function<void(router::GroupEvent)>;

  RankFleet(const Scenario* scenario, EventQueue* queue, Report* report);

  // A router with a new owner id; its predecessor's connections are gone.
  void Connect(uint64_t owner, Post post);
  void Disconnect();

  // What a router may ask of a rank. Answers come through `post`, later.
  void Probe(uint32_t rank);
  void Join(uint32_t rank, uint64_t epoch);
  void OpenStream(uint32_t rank, uint64_t epoch);
  void Send(const std::shared_ptr<const SentStep>& step);
  void Abort(uint32_t rank, uint64_t epoch);
  void Replace(uint32_t rank);  // by way of the supervisor

  void Apply(const Fault& fault);

  uint32_t num_ranks() const { return static_cast<uint32_t>(processes_.size()); }
  // Whether every rank lives and answers, and nothing that was asked is open.
  bool is_calm() const;
  // How often something happened that may lose a group: no more losses are its router's due.
  uint64_t num_disturbances() const { return num_disturbances_; }

 private:
  struct Process {  // one rank's, of this moment
    uint64_t instance = 0;
    bool is_alive = true;
    bool is_frozen = false;
    bool is_impostor = false;
    absl::Time started;
    absl::Time loaded;
    absl::Time slow_until = absl::InfinitePast();
    std::vector<std::function<void()>> backlog;  // what reached it while it was frozen
    // The epoch, as the worker's service keeps it.
    uint64_t highest_epoch = 0;
    uint64_t epoch = 0;    // joined; 0: none
    uint64_t joining = 0;  // being joined
    uint64_t owner = 0;    // of `epoch` or `joining`
    uint64_t join_call = 0;
    uint64_t stream = 0;  // that brings plans; 0: none
    uint64_t stream_owner = 0;
    std::deque<std::shared_ptr<const SentStep>> steps;  // not done yet
    uint64_t num_done = 0;                              // steps of this epoch
    uint64_t run = 0;  // of the step being computed; 0: waits for a plan or for peers
    std::unique_ptr<router::PuppetRank> puppet;
    // Next time only:
    bool refuses_join = false;
    Fault::Kind lie = Fault::Kind::kKill;  // kKill: none
    absl::Duration backoff;
    bool comes_back_as_impostor = false;
  };
  struct Link {
    Random random;
    absl::Time cut_until = absl::InfinitePast();
    absl::Time last_to_rank = absl::InfinitePast();    // of the stream
    absl::Time last_to_router = absl::InfinitePast();  // likewise
    uint64_t stream = 0;                               // the router's; 0: closed
    uint64_t stream_epoch = 0;
    uint64_t lost_instance = 0;  // whose last messages were lost
  };
  struct Call {
    uint32_t rank;
    uint64_t epoch;
  };

  bool is_cut(uint32_t rank) const { return links_[rank].cut_until > queue_->now(); }
  absl::Time ArrivalTime(uint32_t rank);
  absl::Time StreamTime(uint32_t rank, absl::Time* last);
  void AtProcess(uint32_t rank, absl::Time time, std::function<void()> handler);
  void PostNow(router::GroupEvent event);

  uint64_t StartCall(uint32_t rank, uint64_t epoch);
  void FailCall(uint64_t call, const absl::Status& status);
  void FailCallsOf(uint32_t rank, uint64_t limit, const absl::Status& status);
  void Answer(uint32_t rank, uint64_t call, router::GroupEvent event);
  void AnswerProbe(uint32_t rank, uint64_t call);
  void Refuse(uint32_t rank, uint64_t call, uint64_t epoch, const absl::Status& status);

  void HandleJoin(uint32_t rank, uint64_t owner, uint64_t epoch, uint64_t call);
  void TryToMeet(uint32_t rank);
  void HandleAbort(uint32_t rank, uint64_t owner, uint64_t epoch);
  void HandlePlan(uint32_t rank, uint64_t stream, const std::shared_ptr<const SentStep>& step);
  void HandleStreamEnd(uint32_t rank, uint64_t stream);
  void EndEpoch(uint32_t rank);

  void CloseAtRouter(uint32_t rank);
  void SendToRouter(uint32_t rank, uint64_t stream, uint64_t epoch, router::GroupEvent event);
  void CloseAtRank(uint32_t rank, const absl::Status& status);

  uint32_t first_of_stage(uint32_t rank) const { return rank - rank % num_shards_; }
  bool CanRun(uint32_t first) const;
  void Advance();
  void StartRun(uint32_t first);
  void EndRun(uint32_t first, uint64_t run);
  void Reply(uint32_t rank, const SentStep& step);

  void Poison(uint32_t rank, const SentStep& step);
  void Freeze(uint32_t rank, absl::Duration duration);
  void LoseContact(uint32_t rank);
  void Start(uint32_t rank);
  void Kill(uint32_t rank, const char* why);
  void Thaw(uint32_t rank);
  void Cut(uint32_t rank, absl::Duration duration);

  const Scenario& scenario_;
  EventQueue* const queue_;
  Report* const report_;
  const uint32_t num_shards_;
  Random random_;
  std::vector<Process> processes_;
  std::vector<Link> links_;
  uint64_t owner_ = 0;  // 0: no router lives
  uint64_t num_routers_ = 0;
  Post post_;
  std::map<uint64_t, Call> calls_;
  uint64_t num_disturbances_ = 0;
  std::map<uint32_t, uint64_t> num_poisonings_;  // by client
  uint64_t next_id_ = 1;                         // of calls, streams, runs, instances
};

}  // namespace shoal::simulation
