#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/control/scheduler.h"
#include "tests/router_control/puppet_rank.h"

namespace shoal::router {

// `n` tokens that nothing else shares unless `topic` is equal; the last one differs by `last`.
std::vector<uint32_t> Prompt(uint32_t n, uint32_t topic, uint32_t last = 0);

// 64 blocks of 16 tokens, 8 slots, 64 tokens a step.
SchedulerOptions SmallOptions(uint32_t max_plans_in_flight);

// A Scheduler, a puppet rank and a clock that moves by hand. Collects what happens to each request
// and knows what should: ExpectSolo. After every step it checks the invariants of both sides.
class PuppetGroup {
 public:
  struct Outputs {
    std::vector<uint32_t> token_ids;  // the stop token included, as in Solo
    std::vector<PositionLogprobs> logprobs;
    std::vector<PositionLogprobs> prompt_logprobs;
    std::optional<Outcome> outcome;
    int num_terminal_events = 0;
    bool spoke_after_end = false;
  };

  explicit PuppetGroup(const SchedulerOptions& options);
  ~PuppetGroup();

  // A request with the next id, arriving now.
  Request Make(std::vector<uint32_t> prompt, uint32_t max_tokens);

  absl::Status TrySubmit(const Request& request);
  uint64_t Submit(const Request& request);  // must be accepted; returns the id
  void Cancel(uint64_t id) { Take(scheduler_.Cancel(now_, id, "by the test")); }
  void Expire() { Take(scheduler_.Expire(now_)); }
  void Advance(absl::Duration duration) { now_ += duration; }

  bool PlanOne();                      // false if nothing can be planned now
  bool Plan();                         // all that can be planned now; false if nothing is in flight
  void Commit();                       // the oldest plan in flight
  bool Step();                         // Plan, Commit, and 10 ms pass
  void CommitAll();                    // what is in flight
  std::vector<Event> StepForEvents();  // a Step that shows its events
  void Lose();  // the group dies, with the plans in flight if there are any, and comes back
  // Returns the number of steps.
  int RunUntilIdle(int max_steps = 100000);

  // The request ended by a stop token or its length, with the tokens it has alone.
  void ExpectSolo(uint64_t id);
  void ExpectAllSolo();
  // As ExpectAllSolo, but what was cancelled, late or lost has a beginning of it.
  void ExpectSoloUnlessCut();
  // No sequence is left, nothing is held.
  void ExpectIdle();

  Outputs& of(uint64_t id) { return outputs_[id]; }
  Scheduler& scheduler() { return scheduler_; }
  PuppetRank& rank() { return rank_; }
  absl::Time now() const { return now_; }
  const StepPlan& last_plan() const { return last_plan_; }  // the newest made
  const std::deque<StepPlan>& in_flight() const { return plans_; }
  uint64_t num_events() const { return num_events_; }
  // Everything planned so far, as one number.
  uint64_t history() const { return history_; }

 private:
  void Take(const std::vector<Event>& events);

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1000);
  Scheduler scheduler_;
  PuppetRank rank_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Request> requests_;
  std::map<uint64_t, Outputs> outputs_;
  std::deque<StepPlan> plans_;  // in flight, oldest first
  StepPlan last_plan_;
  std::vector<Event> last_events_;
  uint64_t num_events_ = 0;
  uint64_t history_ = 0;
};

}  // namespace shoal::router
