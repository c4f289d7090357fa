// Who goes first: batches, preemption, priorities.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router_control/puppet_group.h"

namespace shoal::router {
namespace {

using testing::SizeIs;

class SchedulerOrderTest : public testing::TestWithParam<uint32_t> {
 protected:
  static SchedulerOptions Small() { return SmallOptions(/*max_plans_in_flight=*/GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(PlansInFlight, SchedulerOrderTest, testing::Values(1, 2));

TEST_P(SchedulerOrderTest, StepsMixDecodesAndPrefills) {
  PuppetGroup group(Small());
  group.Submit(group.Make(Prompt(10, 1), 20));
  group.Step();
  group.CommitAll();
  group.Submit(group.Make(Prompt(200, 2), 5));
  group.PlanOne();
  ASSERT_THAT(group.last_plan().rows, SizeIs(2));
  EXPECT_EQ(group.last_plan().rows[0].source, StepRow::Source::kLastSample);
  EXPECT_EQ(group.last_plan().rows[1].num_tokens, 63u) << "what the decode leaves of 64";
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST_P(SchedulerOrderTest, PreemptsYoungestWhenBlocksRunOut) {
  SchedulerOptions options = Small();
  options.num_blocks = 10;
  options.enable_prefix_cache = false;
  PuppetGroup group(options);
  const uint64_t old = group.Submit(group.Make(Prompt(60, 1), 60));
  group.Advance(absl::Seconds(1));
  const uint64_t young = group.Submit(group.Make(Prompt(60, 2), 60));
  group.RunUntilIdle();
  group.ExpectAllSolo();
  EXPECT_EQ(group.of(old).outcome->num_preemptions, 0u);
  EXPECT_GT(group.of(young).outcome->num_preemptions, 0u);
  EXPECT_EQ(group.scheduler().stats().num_preemptions, group.of(young).outcome->num_preemptions);
}

TEST_P(SchedulerOrderTest, ANewcomerLeavesATenthOfThePoolFree) {
  for (const auto& [num_tokens, fits] : {std::pair(112, true), std::pair(113, false)}) {
    SchedulerOptions options = Small();
    options.num_blocks = 20;
    options.max_batch_tokens = 512;
    PuppetGroup group(options);
    group.Submit(group.Make(Prompt(160, 1), 20));
    group.Step();
    group.CommitAll();
    group.Submit(group.Make(Prompt(num_tokens, 2), 5));
    group.PlanOne();  // the first one's 11th block; 7 and a tenth of 20 fit into the other 9
    EXPECT_THAT(group.last_plan().starts, SizeIs(fits ? 1 : 0)) << num_tokens;
    group.RunUntilIdle();
    group.ExpectAllSolo();
  }
}

TEST_P(SchedulerOrderTest, SmallRequestsDoNotOvertakeALargeOne) {
  SchedulerOptions options = Small();
  options.num_blocks = 20;
  options.max_batch_tokens = 512;
  PuppetGroup group(options);
  group.Submit(group.Make(Prompt(160, 1), 20));
  group.Step();
  const uint64_t large = group.Submit(group.Make(Prompt(200, 2), 5));
  const uint64_t small = group.Submit(group.Make(Prompt(10, 3), 5));
  group.RunUntilIdle();
  group.ExpectAllSolo();
  EXPECT_LE(group.of(large).outcome->admitted, group.of(small).outcome->admitted);
}

TEST_P(SchedulerOrderTest, ThirtyRequestsOfMostOfThePoolAllFinish) {
  for (bool cache : {false, true}) {
    SchedulerOptions options = Small();
    options.num_blocks = 20;
    options.max_batch_seqs = 32;
    options.enable_prefix_cache = cache;
    PuppetGroup group(options);
    for (uint32_t i = 0; i < 30; ++i) group.Submit(group.Make(Prompt(32, i), 160));
    for (uint64_t before = 0; group.Step(); before = group.num_events()) {
      ASSERT_TRUE(group.num_events() > before || group.last_plan().rows[0].num_tokens > 1)
          << "every step makes progress";
    }
    group.ExpectAllSolo();
    group.ExpectIdle();
    for (uint64_t id = 1; id <= 30; ++id) EXPECT_LE(group.of(id).outcome->num_preemptions, 4u);
    EXPECT_GT(group.scheduler().stats().num_preemptions, 0u);
  }
}

TEST_P(SchedulerOrderTest, RandomLengthsFinishInAPoolForTwo) {
  std::mt19937 random(5);
  SchedulerOptions options = Small();
  options.num_blocks = 16;
  PuppetGroup group(options);
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t prompt = 1 + random() % 100;
    group.Submit(group.Make(Prompt(prompt, i), 1 + random() % (128 - prompt)));
  }
  group.RunUntilIdle(5000);
  group.ExpectAllSolo();
  group.ExpectIdle();
}

TEST_P(SchedulerOrderTest, TheOnlyRequestMayFillThePool) {
  SchedulerOptions options = Small();
  options.num_blocks = 8;
  PuppetGroup group(options);
  for (int round = 0; round < 3; ++round) group.Submit(group.Make(Prompt(64, 1), 65));
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST_P(SchedulerOrderTest, HighPriorityTakesThePlaceOfLow) {
  SchedulerOptions options = Small();
  options.max_batch_seqs = 2;
  PuppetGroup group(options);
  Request low = group.Make(Prompt(20, 1), 50);
  low.priority = Priority::kLow;
  group.Submit(low);
  const uint64_t normal = group.Submit(group.Make(Prompt(20, 2), 50));
  group.Step();
  group.CommitAll();
  Request high = group.Make(Prompt(20, 3), 5);
  high.priority = Priority::kHigh;
  group.Submit(high);
  for (int i = 0; i < 5; ++i) group.Step();
  EXPECT_TRUE(group.of(high.id).outcome.has_value());
  group.RunUntilIdle();
  group.ExpectAllSolo();
  EXPECT_EQ(group.of(low.id).outcome->num_preemptions, 1u);
  EXPECT_EQ(group.of(normal).outcome->num_preemptions, 0u);
}

TEST_P(SchedulerOrderTest, EqualPriorityWaitsForItsTurn) {
  SchedulerOptions options = Small();
  options.max_batch_seqs = 1;
  PuppetGroup group(options);
  group.Submit(group.Make(Prompt(20, 1), 50));
  group.Step();
  Request urgent = group.Make(Prompt(20, 2), 5);
  urgent.deadline = group.now() + absl::Hours(1);
  group.Submit(urgent);
  group.RunUntilIdle();
  group.ExpectAllSolo();
  EXPECT_EQ(group.scheduler().stats().num_preemptions, 0u);
}

TEST_P(SchedulerOrderTest, TheEarlierDeadlineGoesFirst) {
  SchedulerOptions options = Small();
  options.max_batch_seqs = 1;
  PuppetGroup group(options);
  const uint64_t relaxed = group.Submit(group.Make(Prompt(20, 1), 5));
  Request urgent = group.Make(Prompt(20, 2), 5);
  urgent.deadline = group.now() + absl::Hours(1);
  group.Submit(urgent);
  group.RunUntilIdle();
  EXPECT_LT(group.of(urgent.id).outcome->finished, group.of(relaxed).outcome->finished);
}

TEST_P(SchedulerOrderTest, LowPriorityIsNotStarved) {
  SchedulerOptions options = Small();
  options.max_batch_seqs = 1;
  options.aging_interval = absl::Seconds(1);
  PuppetGroup group(options);
  Request low = group.Make(Prompt(20, 1), 5);
  low.priority = Priority::kLow;
  group.Submit(low);
  int num_high = 0;
  for (; !group.of(low.id).outcome.has_value(); ++num_high) {
    ASSERT_LT(num_high, 200) << "a stream of high priority starves the low one";
    Request high = group.Make(Prompt(20, 2), 5);
    high.priority = Priority::kHigh;
    group.Submit(high);
    for (int i = 0; i < 5; ++i) group.Step();
  }
  EXPECT_GT(num_high, 10) << "but it did wait";
}

}  // namespace
}  // namespace shoal::router
