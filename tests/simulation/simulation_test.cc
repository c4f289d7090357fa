// The control plane under thousands of seeds. Environment:
//   SHOAL_SIM_SEED=n   plays this seed alone
//   SHOAL_SIM_SEEDS=n  plays so many, from 1 on

#include "tests/simulation/simulation.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/simulation/forked.h"
#include "tests/simulation/shrink.h"

namespace shoal::simulation {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kNumSeeds = 600;
#elif defined(NDEBUG)
constexpr uint64_t kNumSeeds = 12000;
#else
constexpr uint64_t kNumSeeds = 1000;
#endif

std::optional<uint64_t> FromEnvironment(const char* name) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  if (text == nullptr || *text == '\0') return std::nullopt;
  EXPECT_TRUE(absl::SimpleAtoi(text, &value)) << name << "=" << text;
  return value;
}

// The least that fails, and the end of its history.
std::string Explain(uint64_t seed) {
  const auto fails = [](const Scenario& scenario) { return !PlayForked(scenario).ok; };
  const Scenario whole = Scenario::Make(seed);
  if (!fails(whole)) return absl::StrCat("seed ", seed, " failed once and does not fail again");
  const Scenario least = Shrink(whole, fails);
  return absl::StrCat("seed ", seed, " fails (SHOAL_SIM_SEED=", seed,
                      "). The least of it that does:\n", least.ToString(),
                      absl::StrJoin(PlayForked(least).lines, "\n"), "\n");
}

TEST(SimulationTest, EverySeedKeepsAllPromises) {
  Tally tally;
  std::optional<uint64_t> failed;
  if (const std::optional<uint64_t> seed = FromEnvironment("SHOAL_SIM_SEED"); seed.has_value()) {
    failed = FindFailure(*seed, 1, 1, &tally);
  } else {
    const uint64_t count = FromEnvironment("SHOAL_SIM_SEEDS").value_or(kNumSeeds);
    const int num_processes =
        static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
    failed = FindFailure(1, count, num_processes, &tally);
  }
  ASSERT_FALSE(failed.has_value()) << Explain(*failed);
  RecordProperty("simulations", absl::StrCat(tally.num_simulations));
  std::cout << tally.num_simulations << " simulations, " << tally.num_events << " events, "
            << tally.num_steps << " steps, " << tally.num_losses << " lost groups, "
            << tally.num_preemptions << " preemptions, " << tally.num_streams
            << " streams, of which " << tally.num_complete << " complete, " << tally.num_resumed
            << " resumed, " << tally.num_cancelled << " cancelled, " << tally.num_late << " late, "
            << tally.num_unavailable << " unavailable, " << tally.num_poisoned << " poisoned\n";
}

TEST(SimulationTest, MeetsWhatItIsMadeFor) {
  Tally tally;
  ASSERT_FALSE(FindFailure(1, 300, 2, &tally).has_value());
  EXPECT_EQ(tally.num_simulations, 300u);
  EXPECT_GT(tally.num_losses, 100u);
  EXPECT_GT(tally.num_preemptions, 100u);
  EXPECT_GT(tally.num_prefix_hits, 1000u);
  EXPECT_GT(tally.num_complete, tally.num_streams / 2);
  EXPECT_GT(tally.num_resumed, 10u);
  EXPECT_GT(tally.num_poisoned, 3u);
  EXPECT_GT(tally.num_unavailable, 10u);
  EXPECT_GT(tally.num_late, 50u);
  EXPECT_GT(tally.num_cancelled, 50u);
}

TEST(SimulationTest, TheSameSeedGivesTheSameHistory) {
  const auto fingerprint = [](uint64_t seed) {
    Simulation simulation(Scenario::Make(seed));
    EXPECT_TRUE(simulation.Run()) << simulation.report().violation();
    return simulation.report().fingerprint();
  };
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(fingerprint(seed), fingerprint(seed));
  EXPECT_NE(fingerprint(1), fingerprint(2));
}

}  // namespace
}  // namespace shoal::simulation
