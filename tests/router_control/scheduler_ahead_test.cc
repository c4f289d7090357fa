// Plans made while another one is with the ranks.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router_control/puppet_group.h"

namespace shoal::router {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

SchedulerOptions Small() { return SmallOptions(/*max_plans_in_flight=*/2); }

TEST(SchedulerAheadTest, TheNextPlanIsMadeBeforeTheTokensAreBack) {
  PuppetGroup group(Small());
  group.Submit(group.Make(Prompt(20, 1), 10));
  ASSERT_TRUE(group.PlanOne());
  ASSERT_TRUE(group.PlanOne());
  ASSERT_THAT(group.last_plan().rows, SizeIs(1));
  EXPECT_EQ(group.last_plan().rows[0].source, StepRow::Source::kLastSample);
  EXPECT_EQ(group.last_plan().rows[0].outputs, StepRow::Outputs::kLast);
  EXPECT_FALSE(group.PlanOne()) << "two are enough";
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST(SchedulerAheadTest, AnEndByLengthIsKnownAndCostsNothing) {
  for (const uint32_t max_tokens : {1, 2, 3, 10}) {
    PuppetGroup group(Small());
    group.Submit(group.Make(Prompt(20, 1), max_tokens));
    EXPECT_EQ(group.RunUntilIdle(), static_cast<int>(max_tokens));
    EXPECT_EQ(group.rank().num_computed_tokens(), 20u + max_tokens - 1);
    group.ExpectAllSolo();
  }
}

TEST(SchedulerAheadTest, AnEndByStopTokenCostsOneDiscardedRow) {
  PuppetGroup group(Small());
  Request request = group.Make(Prompt(20, 1), 100);
  request.eos_ids = {PuppetRank::Solo(request)[4]};
  const size_t num_generated = PuppetRank::Solo(request).size();
  group.Submit(request);
  group.RunUntilIdle();
  group.ExpectAllSolo();
  EXPECT_EQ(group.of(request.id).outcome->num_generated_tokens, num_generated);
  EXPECT_EQ(group.rank().num_computed_tokens(), 20 + num_generated);
  group.ExpectIdle();
}

// The row computed the KV of the stop token, which the next turn of a conversation repeats.
TEST(SchedulerAheadTest, TheDiscardedRowIsNoWasteForTheCache) {
  PuppetGroup group(Small());
  Request request = group.Make(Prompt(11, 1), 100);
  std::vector<uint32_t> answer = PuppetRank::Solo(request);
  request.eos_ids = {answer[4]};
  answer = PuppetRank::Solo(request);
  ASSERT_THAT(answer, SizeIs(5)) << "with the prompt a whole block";
  group.Submit(request);
  group.RunUntilIdle();
  Request next = group.Make(request.token_ids, 10);
  next.token_ids.insert(next.token_ids.end(), answer.begin(), answer.end());
  next.token_ids.push_back(7);
  group.Submit(next);
  group.RunUntilIdle();
  group.ExpectAllSolo();
  EXPECT_EQ(group.of(next.id).outcome->num_cached_tokens, 16u);
}

TEST(SchedulerAheadTest, ASlotIsReusedAfterTheLastPlanThatHasIt) {
  SchedulerOptions options = Small();
  options.max_batch_seqs = 1;
  PuppetGroup group(options);
  Request request = group.Make(Prompt(20, 1), 100);
  request.eos_ids = {PuppetRank::Solo(request)[0]};
  group.Submit(request);
  group.Plan();
  ASSERT_THAT(group.in_flight(), SizeIs(2));
  const uint64_t next = group.Submit(group.Make(Prompt(20, 2), 5));
  group.Commit();
  EXPECT_EQ(group.of(request.id).outcome->reason, FinishReason::kStopToken);
  EXPECT_FALSE(group.PlanOne()) << "a plan has a row of the slot";
  group.Commit();
  ASSERT_TRUE(group.PlanOne());
  EXPECT_THAT(group.last_plan().ended_slots, ElementsAre(0));
  EXPECT_THAT(group.last_plan().starts, SizeIs(1));
  group.RunUntilIdle();
  group.ExpectSolo(next);
}

TEST(SchedulerAheadTest, ATextThatIsCompleteLeavesTheRowsPlannedAheadBehind) {
  PuppetGroup group(Small());
  const Request request = group.Make(Prompt(15, 1), 100);
  group.Submit(request);
  group.Plan();
  ASSERT_THAT(group.in_flight(), SizeIs(2)) << "the second fills a block with a token to come";
  group.scheduler().Finish(request.id);
  EXPECT_GT(group.scheduler().stats().num_held_blocks, 0u);
  group.CommitAll();
  group.ExpectIdle();
  EXPECT_EQ(group.scheduler().stats().num_cached_blocks, 0u) << "its log ends before that token";
  EXPECT_EQ(group.num_events(), 0u);
}

TEST(SchedulerAheadTest, WhatFollowsAFailedRowIsDiscarded) {
  SchedulerOptions options = Small();
  options.max_prefill_chunk = 16;
  PuppetGroup group(options);
  const uint64_t ill = group.Submit(group.Make(Prompt(40, 1), 20));
  group.rank().FailSeed(ill, "logits are not finite");
  group.Plan();
  ASSERT_THAT(group.in_flight(), SizeIs(2));
  group.Commit();
  EXPECT_EQ(group.of(ill).outcome->reason, FinishReason::kError);
  EXPECT_GT(group.scheduler().stats().num_held_blocks, 0u);
  group.rank().HealSeed(ill);
  group.Commit();
  group.ExpectIdle();
  EXPECT_EQ(group.scheduler().stats().num_cached_blocks, 0u);
}

TEST(SchedulerAheadTest, PromptChunksFollowEachOtherIfTheyAreSmall) {
  for (const auto& [chunk, follows] : {std::pair(32u, true), std::pair(33u, false)}) {
    SchedulerOptions options = Small();
    options.max_prefill_chunk = chunk;
    PuppetGroup group(options);
    Request request = group.Make(Prompt(150, 1), 5);
    request.sampling.prompt_logprobs = true;
    group.Submit(request);
    ASSERT_TRUE(group.PlanOne());
    EXPECT_EQ(group.PlanOne(), follows) << "who comes now would wait for " << chunk << " tokens";
    group.RunUntilIdle();
    group.ExpectAllSolo();
  }
}

TEST(SchedulerAheadTest, ANewcomerWaitsForThePlanThatIsQueuedAndNoMore) {
  PuppetGroup group(Small());
  group.Submit(group.Make(Prompt(20, 1), 50));
  group.Step();
  group.Plan();
  ASSERT_THAT(group.in_flight(), SizeIs(2));
  group.Submit(group.Make(Prompt(20, 2), 5));
  group.Commit();
  EXPECT_FALSE(group.PlanOne()) << "the plan after the queued one is made with the newcomer";
  group.Commit();
  ASSERT_TRUE(group.PlanOne());
  EXPECT_THAT(group.last_plan().starts, SizeIs(1));
  EXPECT_THAT(group.last_plan().rows, SizeIs(2));
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST(SchedulerAheadTest, AFullBatchIsPlannedAheadWhoeverWaits) {
  SchedulerOptions options = Small();
  options.max_batch_seqs = 2;
  PuppetGroup group(options);
  group.Submit(group.Make(Prompt(5, 1), 6));
  group.Submit(group.Make(Prompt(5, 2), 20));
  group.Submit(group.Make(Prompt(5, 3), 6));
  group.Plan();
  EXPECT_THAT(group.in_flight(), SizeIs(2));
  for (int i = 0; i < 4; ++i) group.Step();
  group.Plan();
  EXPECT_THAT(group.in_flight(), SizeIs(2)) << "with the last token of the first";
  group.Commit();
  EXPECT_FALSE(group.PlanOne()) << "the third may start when the first has ended";
  group.Commit();
  group.PlanOne();
  EXPECT_THAT(group.last_plan().rows, SizeIs(2));
  EXPECT_THAT(group.last_plan().starts, SizeIs(1));
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST(SchedulerAheadTest, NobodyIsPreemptedWhileAPlanIsWithTheRanks) {
  SchedulerOptions options = Small();
  options.num_blocks = 10;
  options.enable_prefix_cache = false;
  PuppetGroup group(options);
  group.Submit(group.Make(Prompt(60, 1), 60));
  group.Submit(group.Make(Prompt(60, 2), 60));
  const auto num_preemptions = [&group] { return group.scheduler().stats().num_preemptions; };
  while (group.scheduler().has_work()) {
    const uint64_t before = num_preemptions();
    const bool is_ahead = !group.in_flight().empty();
    if (group.PlanOne() && is_ahead) {
      EXPECT_THAT(group.last_plan().starts, IsEmpty());
      EXPECT_EQ(num_preemptions(), before);
    } else if (is_ahead) {
      group.Commit();
    }
  }
  EXPECT_GT(num_preemptions(), 0u);
  group.ExpectAllSolo();
}

TEST(SchedulerAheadTest, ResultsComeInTheOrderOfThePlans) {
  PuppetGroup group(Small());
  group.Submit(group.Make(Prompt(20, 1), 10));
  group.Plan();
  StepResult second;
  second.step = group.in_flight()[1].step;
  second.outputs.resize(1);
  second.outputs[0].token_ids = {1};
  EXPECT_EQ(group.scheduler().CommitStep(group.now(), second).status().code(),
            absl::StatusCode::kInternal);
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST(SchedulerAheadTest, ALossWithTwoPlansUncommittedChangesNoToken) {
  for (const int num_committed : {0, 1}) {
    PuppetGroup group(Small());
    for (uint32_t i = 0; i < 5; ++i) group.Submit(group.Make(Prompt(9, i), 40));
    for (int i = 0; i < 12; ++i) {
      group.Step();
      group.Plan();
      ASSERT_THAT(group.in_flight(), SizeIs(2));
      if (i % 4 != 3) continue;
      for (int n = 0; n < num_committed; ++n) group.Commit();
      group.Lose();
      // A loss with nothing under way: chance must not make anyone a suspect.
      group.Step();
      group.CommitAll();
      group.Lose();
    }
    group.RunUntilIdle();
    group.ExpectAllSolo();
    group.ExpectIdle();
  }
}

}  // namespace
}  // namespace shoal::router
