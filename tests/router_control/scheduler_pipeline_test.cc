// Plans that overlap so that every stage of a pipeline has one.

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router_control/puppet_group.h"

namespace shoal::router {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

SchedulerOptions Pipeline(uint32_t num_stages) {
  SchedulerOptions options = SmallOptions(/*max_plans_in_flight=*/num_stages);
  options.num_stages = num_stages;
  return options;
}

std::set<uint32_t> SlotsOf(const StepPlan& plan) {
  std::set<uint32_t> slots;
  for (const StepRow& row : plan.rows) slots.insert(row.slot);
  return slots;
}

TEST(SchedulerPipelineTest, SequencesThatDecodeShareThePlans) {
  PuppetGroup group(Pipeline(2));
  for (uint32_t i = 0; i < 4; ++i) group.Submit(group.Make(Prompt(10, i), 20));
  ASSERT_TRUE(group.PlanOne());
  EXPECT_THAT(group.last_plan().rows, SizeIs(4)) << "the prompts";
  EXPECT_FALSE(group.PlanOne()) << "no token is known yet";
  group.Commit();
  ASSERT_TRUE(group.PlanOne());
  const std::set<uint32_t> first = SlotsOf(group.last_plan());
  ASSERT_TRUE(group.PlanOne());
  const std::set<uint32_t> second = SlotsOf(group.last_plan());
  EXPECT_THAT(first, ElementsAre(0, 1));
  EXPECT_THAT(second, ElementsAre(2, 3));
  for (const StepRow& row : group.last_plan().rows) {
    EXPECT_EQ(row.source, StepRow::Source::kToken);
  }
  EXPECT_FALSE(group.PlanOne());
  group.Commit();
  ASSERT_TRUE(group.PlanOne());
  EXPECT_EQ(SlotsOf(group.last_plan()), first);
  group.RunUntilIdle();
  group.ExpectAllSolo();
  group.ExpectIdle();
}

TEST(SchedulerPipelineTest, AThirdPlanOfThreeStagesHasWhatIsLeft) {
  PuppetGroup group(Pipeline(3));
  for (uint32_t i = 0; i < 7; ++i) group.Submit(group.Make(Prompt(8, i), 20));
  group.PlanOne();
  group.Commit();
  std::vector<size_t> sizes;
  while (group.PlanOne()) sizes.push_back(group.last_plan().rows.size());
  EXPECT_THAT(sizes, ElementsAre(3, 3, 1));
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST(SchedulerPipelineTest, ChunksOfAPromptFollowEachOther) {
  SchedulerOptions options = Pipeline(2);
  options.max_batch_tokens = 256;
  PuppetGroup group(options);
  group.Submit(group.Make(Prompt(150, 1), 3));
  ASSERT_TRUE(group.PlanOne());
  EXPECT_THAT(group.last_plan().rows, SizeIs(1));
  EXPECT_EQ(group.last_plan().rows[0].num_tokens, 64u);
  ASSERT_TRUE(group.PlanOne());
  ASSERT_THAT(group.last_plan().rows, SizeIs(1));
  EXPECT_EQ(group.last_plan().rows[0].num_tokens, 64u);
  EXPECT_EQ(group.last_plan().rows[0].source, StepRow::Source::kLog);
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST(SchedulerPipelineTest, ANewcomerStartsWhilePlansAreWithTheRanks) {
  PuppetGroup group(Pipeline(2));
  group.Submit(group.Make(Prompt(10, 1), 20));
  group.Step();
  ASSERT_TRUE(group.PlanOne());
  group.Submit(group.Make(Prompt(10, 2), 20));
  ASSERT_TRUE(group.PlanOne());
  EXPECT_THAT(group.last_plan().starts, SizeIs(1));
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST(SchedulerPipelineTest, AnEndByStopTokenCostsNothing) {
  PuppetGroup group(Pipeline(2));
  Request request = group.Make(Prompt(20, 1), 100);
  request.eos_ids = {PuppetRank::Solo(request)[4]};
  const size_t num_generated = PuppetRank::Solo(request).size();
  group.Submit(request);
  group.RunUntilIdle();
  group.ExpectAllSolo();
  EXPECT_EQ(group.rank().num_computed_tokens(), 20 + num_generated - 1);
}

// Its chunks would follow each other to the end of a long prompt.
TEST(SchedulerPipelineTest, AVictimGetsNoRowsUntilItHasLeftItsPlans) {
  SchedulerOptions options = Pipeline(2);
  options.max_batch_seqs = 1;
  PuppetGroup group(options);
  Request low = group.Make(Prompt(400, 1), 3);
  low.priority = Priority::kLow;
  group.Submit(low);
  ASSERT_TRUE(group.PlanOne());
  ASSERT_TRUE(group.PlanOne());
  Request high = group.Make(Prompt(10, 2), 3);
  high.priority = Priority::kHigh;
  group.Submit(high);
  group.Commit();
  EXPECT_FALSE(group.PlanOne()) << "the victim's second chunk is with the ranks";
  group.Commit();
  ASSERT_TRUE(group.PlanOne());
  ASSERT_THAT(group.last_plan().starts, SizeIs(1));
  EXPECT_EQ(group.last_plan().starts[0].token_ids, high.token_ids);
  group.RunUntilIdle();
  group.ExpectAllSolo();
  EXPECT_EQ(group.scheduler().stats().num_preemptions, 1u);
}

TEST(SchedulerPipelineTest, BlocksThatRunOutComeFromAVictimThatNoPlanHas) {
  SchedulerOptions options = Pipeline(2);
  options.num_blocks = 16;
  PuppetGroup group(options);
  for (uint32_t i = 0; i < 4; ++i) group.Submit(group.Make(Prompt(40, i), 100));
  group.RunUntilIdle();
  group.ExpectAllSolo();
  group.ExpectIdle();
  EXPECT_GT(group.scheduler().stats().num_preemptions, 0u);
}

// The second request waits for the prefix that the first computes, and has the next place.
TEST(SchedulerPipelineTest, NobodyWaitsForAPrefixThatWillNotCome) {
  for (const bool fails : {false, true}) {
    SchedulerOptions options = Pipeline(3);
    options.max_batch_seqs = 2;
    PuppetGroup group(options);
    const Request first = group.Make(Prompt(300, 1), 3);
    if (fails) group.rank().FailSeed(first.sampling.seed, "non-finite logits");
    group.Submit(first);
    group.Plan();
    const Request second = group.Make(Prompt(300, 1, 1), 3);
    group.Submit(second);
    const Request third = group.Make(Prompt(20, 3), 3);
    group.Submit(third);
    if (!fails) group.Cancel(first.id);
    group.Commit();
    ASSERT_TRUE(group.PlanOne());
    ASSERT_THAT(group.last_plan().starts, SizeIs(1)) << fails;
    EXPECT_EQ(group.last_plan().starts[0].token_ids.size(), fails ? 300u : 20u);
    group.RunUntilIdle();
    group.ExpectSoloUnlessCut();
  }
}

TEST(SchedulerPipelineTest, ASuspectIsTriedWithNoOtherPlan) {
  PuppetGroup group(Pipeline(2));
  for (uint32_t i = 0; i < 3; ++i) group.Submit(group.Make(Prompt(10, i), 20));
  group.Step();
  group.Plan();
  group.Lose();
  group.Plan();
  group.Lose();  // all in it are suspects
  ASSERT_TRUE(group.PlanOne());
  EXPECT_THAT(group.last_plan().rows, SizeIs(1));
  EXPECT_FALSE(group.PlanOne());
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

}  // namespace
}  // namespace shoal::router
