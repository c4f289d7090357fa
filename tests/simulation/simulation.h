#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tests/simulation/client_ledger.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/rank_fleet.h"
#include "tests/simulation/report.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/simulated_router.h"

namespace shoal::simulation {

// Plays a scenario from the start to the moment when nothing is left to happen. One thread, no
// I/O, no clock: the same scenario gives the same history.
class Simulation {
 public:
  explicit Simulation(const Scenario& scenario, bool tells_history = false);

  // Whether all was as it must be; else see report(). A CHECK of the code under test may end the
  // process.
  bool Run();

  const Report& report() const { return report_; }

 private:
  void StartRouter();
  void CrashRouter();
  void Arrive(const ClientPlan& client);
  void Submit(const ClientPlan& client);
  void OnRefused(const ClientPlan& client, const absl::Status& status);
  void OnTokens(Stream* stream);
  void Apply(const Fault& fault);
  void CheckEnd();
  Random& random_of(const ClientPlan& client) { return client_randoms_.at(client.number); }

  const Scenario scenario_;
  Report report_;
  EventQueue queue_;
  ClientLedger ledger_;
  RankFleet fleet_;
  std::map<uint32_t, Random> client_randoms_;
  std::map<uint32_t, int> num_tries_;                // by client
  std::map<const Stream*, absl::Time> reads_since_;  // of slow readers: its first token
  std::unique_ptr<SimulatedRouter> router_;          // null while none lives
  uint64_t num_routers_ = 0;
  bool is_draining_ = false;
};

}  // namespace shoal::simulation
