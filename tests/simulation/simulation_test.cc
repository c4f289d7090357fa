#include "tests/simulation/simulation.h"

#include "gtest/gtest.h"

namespace shoal::simulation {
namespace {

TEST(SimulationTest, First) {
  const char* seed = getenv("SHOAL_SIM_SEED");
  uint64_t first = seed ? strtoull(seed, nullptr, 10) : 1;
  uint64_t last = seed ? first : (getenv("SHOAL_SIM_SEEDS") ? strtoull(getenv("SHOAL_SIM_SEEDS"), nullptr, 10) : 200);
  Tally total;
  for (uint64_t s = first; s <= last; ++s) {
    Scenario scenario = Scenario::Make(s);
    Simulation simulation(scenario, seed != nullptr);
    const bool ok = simulation.Run();
    const Tally t = simulation.tally();
    total.num_events += t.num_events; total.num_streams += t.num_streams; total.num_finished += t.num_finished;
    if (!ok || seed) {
    if (seed) for (const auto& line : simulation.report().lines()) printf("%s\n", line.c_str());
      printf("%s", scenario.ToString().c_str());
    printf("seed %lu: %s\n", s, simulation.report().violation().c_str());
    }
    if (!ok) break;
  }
  printf("%lu events %lu streams %lu finished\n", total.num_events, total.num_streams, total.num_finished);
}

}  // namespace
}  // namespace shoal::simulation
