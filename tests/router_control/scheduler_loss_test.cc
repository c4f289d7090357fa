// A group that is lost with all its KV, and comes back.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router_control/puppet_group.h"

namespace shoal::router {
namespace {

using testing::SizeIs;

class SchedulerLossTest : public testing::TestWithParam<uint32_t> {
 protected:
  static SchedulerOptions Small() { return SmallOptions(/*max_plans_in_flight=*/GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(PlansInFlight, SchedulerLossTest, testing::Values(1, 2));

TEST_P(SchedulerLossTest, StreamsOutliveTheirRanks) {
  for (bool in_flight : {false, true}) {
    PuppetGroup group(Small());
    for (uint32_t i = 0; i < 12; ++i) group.Submit(group.Make(Prompt(10 + i * 9, i % 4), 40));
    for (int i = 0; i < 15; ++i) group.Step();
    in_flight ? static_cast<void>(group.Plan()) : group.CommitAll();
    group.Lose();
    EXPECT_EQ(group.scheduler().stats().num_cached_blocks, 0u);
    group.RunUntilIdle();
    group.ExpectAllSolo();
    group.ExpectIdle();
  }
}

TEST_P(SchedulerLossTest, ACancelInFlightDoesNotSurviveALoss) {
  PuppetGroup group(Small());
  const uint64_t id = group.Submit(group.Make(Prompt(50, 1), 40));
  const uint64_t other = group.Submit(group.Make(Prompt(50, 2), 40));
  group.Plan();
  group.Cancel(id);
  group.Lose();
  group.RunUntilIdle();
  group.ExpectSolo(other);
  EXPECT_EQ(group.of(id).num_terminal_events, 1);
  group.ExpectIdle();
}

TEST_P(SchedulerLossTest, PromptLogprobsSurviveALossInTheMiddle) {
  PuppetGroup group(Small());
  const uint64_t other = group.Submit(group.Make(Prompt(34, 2), 5));
  Request request = group.Make(Prompt(100, 1), 5);
  request.sampling.prompt_logprobs = true;
  group.Submit(request);
  group.Step();
  EXPECT_THAT(group.of(request.id).prompt_logprobs, SizeIs(30)) << "what the other left of 64";
  group.Cancel(other);
  group.Lose();
  group.Step();  // the first 64, of which 30 are delivered
  EXPECT_THAT(group.of(request.id).prompt_logprobs, SizeIs(64));
  group.Lose();
  group.RunUntilIdle();
  group.ExpectSolo(request.id);
}

TEST_P(SchedulerLossTest, APoisonRequestEndsAlone) {
  PuppetGroup group(Small());
  std::vector<uint64_t> ids;
  for (uint32_t i = 0; i < 5; ++i) ids.push_back(group.Submit(group.Make(Prompt(30, i), 20)));
  const uint64_t poison = ids[2];
  const auto has_poison = [&] {
    const uint64_t num_ended = group.of(poison).num_terminal_events;
    if (num_ended > 0) return false;
    for (const StepPlan& plan : group.in_flight()) {
      for (const SequenceStart& start : plan.starts) {
        if (start.sampling.seed == poison) return true;
      }
    }
    return false;
  };
  int num_losses = 0;
  while (group.Plan()) {
    if (has_poison()) {
      group.Lose();
      ASSERT_LE(++num_losses, 3);
    } else {
      group.Commit();
    }
  }
  EXPECT_EQ(num_losses, 3);
  EXPECT_EQ(group.of(poison).outcome->reason, FinishReason::kError);
  EXPECT_EQ(group.of(poison).outcome->status.code(), absl::StatusCode::kInternal);
  for (uint64_t id : ids) {
    if (id != poison) group.ExpectSolo(id);
  }
  group.ExpectIdle();
}

TEST_P(SchedulerLossTest, SuspectsAreReplayedOneByOneThenTogether) {
  PuppetGroup group(Small());
  for (uint32_t i = 0; i < 3; ++i) group.Submit(group.Make(Prompt(20, i), 20));
  for (int loss = 0; loss < 2; ++loss) {
    group.Plan();
    group.Lose();
  }
  group.Submit(group.Make(Prompt(20, 9), 20));
  for (uint64_t suspect = 1; suspect <= 3; ++suspect) {
    // It is tried until it has computed all that it had planned: GetParam() steps.
    for (uint32_t step = 0; step < GetParam(); ++step) {
      ASSERT_TRUE(group.PlanOne());
      EXPECT_THAT(group.last_plan().rows, SizeIs(1));
      ASSERT_THAT(group.last_plan().starts, SizeIs(step == 0 ? 1 : 0));
      if (step == 0) {
        EXPECT_EQ(group.last_plan().starts[0].sampling.seed, suspect);
      }
      EXPECT_FALSE(group.PlanOne()) << "a trial has the ranks for itself";
      group.Commit();
    }
  }
  group.PlanOne();
  EXPECT_THAT(group.last_plan().rows, SizeIs(4));
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST_P(SchedulerLossTest, TwoLossesFarApartMakeNoSuspect) {
  PuppetGroup group(Small());
  const uint64_t one = group.Submit(group.Make(Prompt(30, 1), 60));
  group.Step();
  group.Plan();
  group.Lose();
  group.Step();
  group.CommitAll();
  group.Lose();  // between steps: nobody was in a running plan
  group.Step();
  group.Plan();
  group.Lose();
  group.Submit(group.Make(Prompt(30, 2), 60));
  group.PlanOne();
  EXPECT_THAT(group.last_plan().rows, SizeIs(2)) << "nobody runs alone";
  group.RunUntilIdle();
  group.ExpectAllSolo();
  EXPECT_EQ(group.of(one).num_terminal_events, 1);
}

}  // namespace
}  // namespace shoal::router
