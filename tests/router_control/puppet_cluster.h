#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/control/group.h"
#include "router/control/scheduler.h"
#include "tests/router_control/puppet_rank.h"

namespace shoal::router {

std::string ToString(const GroupAction& action);

// A whole control plane without I/O: a Group, its Scheduler, puppet ranks, and a shell that carries
// actions out and brings the answers one by one, in an order that the test chooses.
class PuppetCluster {
 public:
  PuppetCluster(const GroupOptions& group_options, const SchedulerOptions& options);
  ~PuppetCluster();

  static RankInfo Info(const SchedulerOptions& options, uint32_t rank);

  // Plans (an even `choice`, or nothing else to do); or delivers one waiting answer, the next of
  // the rank that the `choice`-th answer is of; or lets time pass to the next deadline. Returns
  // false when there is nothing at all to do.
  bool Step(uint32_t choice = 0);
  void Drain();  // delivers answers until there are none
  void RunUntilIdle(int max_steps = 100000);

  void Kill(uint32_t rank);                                            // kill -9
  void Restart(uint32_t rank);                                         // a new process
  void Freeze(uint32_t rank) { processes_[rank].is_frozen = true; }    // SIGSTOP
  void Corrupt(uint32_t rank) { processes_[rank].is_corrupt = true; }  // its next hash is wrong
  bool is_alive(uint32_t rank) const { return processes_[rank].is_alive; }

  void Submit(const Request& request);
  void ExpectAllSolo();

  Group& group() { return group_; }
  Scheduler& scheduler() { return scheduler_; }
  absl::Time now() const { return now_; }
  const std::optional<Outcome>& outcome(uint64_t id) { return outputs_[id].outcome; }
  uint64_t num_steps_of(uint32_t rank) const { return processes_[rank].num_steps; }

 private:
  struct Process {
    bool is_alive = true;
    bool is_frozen = false;
    bool is_corrupt = false;
    uint64_t epoch = 0;  // that it joined
    uint64_t num_steps = 0;
    std::unique_ptr<PuppetRank> rank;
  };
  struct Outputs {
    std::vector<uint32_t> token_ids;
    std::optional<Outcome> outcome;
  };

  bool Plan();
  void Deliver(uint32_t choice);
  void Handle(const GroupEvent& event);
  void CarryOut(const GroupAction& action);
  void Answer(uint32_t rank, GroupEvent event);
  void SendToRanks(const SendPlan& send);
  void Take(const std::vector<Event>& events);

  const SchedulerOptions options_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1000);
  Group group_;
  Scheduler scheduler_;
  std::vector<Process> processes_;
  std::deque<GroupEvent> answers_;
  std::optional<StepPlan> plan_;
  std::vector<Request> requests_;
  std::map<uint64_t, Outputs> outputs_;
};

}  // namespace shoal::router
