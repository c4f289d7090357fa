#include "tests/simulation/shrink.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace shoal::simulation {
namespace {

Scenario Busy() {
  Scenario scenario;
  for (uint32_t i = 1; i <= 20; ++i) scenario.clients.emplace_back().number = i;
  for (uint32_t rank = 0; rank < 5; ++rank) scenario.faults.emplace_back().rank = rank;
  return scenario;
}

bool HasClient(const Scenario& scenario, uint32_t number) {
  return std::any_of(scenario.clients.begin(), scenario.clients.end(),
                     [number](const ClientPlan& client) { return client.number == number; });
}

TEST(ShrinkTest, LeavesWhatItTakesAndNothingElse) {
  int num_calls = 0;
  const Scenario least = Shrink(Busy(), [&num_calls](const Scenario& scenario) {
    ++num_calls;
    const auto& faults = scenario.faults;
    return HasClient(scenario, 3) && HasClient(scenario, 17) &&
           std::any_of(faults.begin(), faults.end(), [](const Fault& f) { return f.rank == 4; });
  });
  ASSERT_EQ(least.clients.size(), 2u);
  EXPECT_EQ(least.clients[0].number, 3u);
  EXPECT_EQ(least.clients[1].number, 17u);
  ASSERT_EQ(least.faults.size(), 1u);
  EXPECT_EQ(least.faults[0].rank, 4u);
  EXPECT_LT(num_calls, 60);
}

TEST(ShrinkTest, WhatFailsWithNothingShrinksToNothing) {
  const Scenario least = Shrink(Busy(), [](const Scenario&) { return true; });
  EXPECT_TRUE(least.clients.empty());
  EXPECT_TRUE(least.faults.empty());
}

}  // namespace
}  // namespace shoal::simulation
