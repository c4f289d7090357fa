#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "router/control/group_control.h"

namespace shoal::simulation {

// One client: what it asks for and how it behaves. Times count from the start of the simulation.
struct ClientPlan {
  uint32_t number = 0;  // from 1; also the sampling seed, by which its rows are told from others'
  absl::Duration arrival;
  router::Request request;  // all but ids, choice and times
  uint32_t num_choices = 1;
  absl::Duration time_limit = absl::InfiniteDuration();     // its deadline, after the arrival
  absl::Duration cancels_after = absl::InfiniteDuration();  // after the arrival
  uint32_t stops_after = 0;  // a stop string is complete with this many tokens; 0: has none
  absl::Duration read_time;  // of one token: a slow reader is cancelled by the edge
  bool fails = false;        // its rows fail (non-finite logits), the step does not
  bool is_poison = false;    // a rank that computes it dies
};

struct Fault {
  enum class Kind {
    kKill,            // kill -9 of a rank
    kFreeze,          // SIGSTOP, and SIGCONT after `duration`, if that is finite
    kSlow,            // steps take ten times as long, for `duration`
    kCut,             // no message passes between router and rank, for `duration`
    kWrongStateHash,  // in the rank's next answer
    kWrongTokens,     // in the rank's next answer: not those that its peers, or its hash, say
    kWrongStep,       // the rank's next answer names another step
    kRefuseJoin,      // the rank's next JoinGroup fails
    kImpostor,        // the rank dies; the process that comes back has another model, once
    kRouterCrash,     // another router starts a moment later; clients resume their streams there
    kDrain,           // the router takes nothing new; after `duration` it ends what runs
  };
  Kind kind = Kind::kKill;
  absl::Duration time;
  uint32_t rank = 0;
  absl::Duration duration;
};

// Everything that a simulation does follows from this.
struct Scenario {
  uint64_t seed = 0;
  router::GroupControlOptions options;
  uint32_t num_ranks = 1;
  absl::Duration step_time;   // of an empty step
  absl::Duration token_time;  // and of each of its tokens
  std::vector<ClientPlan> clients;
  std::vector<Fault> faults;

  // REQUIRES: the scenario is what this makes of its seed, or the same with clients and faults left
  // out.
  static Scenario Make(uint64_t seed);
  // A few lines for a reader.
  std::string ToString() const;
};

}  // namespace shoal::simulation
