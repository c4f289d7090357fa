// What a Scheduler does with requests that come and go; the other files of its name are about one
// phase each.

#include "router/control/scheduler.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router_control/puppet_group.h"

namespace shoal::router {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class SchedulerTest : public testing::TestWithParam<uint32_t> {
 protected:
  static SchedulerOptions Small() { return SmallOptions(/*max_plans_in_flight=*/GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(PlansInFlight, SchedulerTest, testing::Values(1, 2));

TEST_P(SchedulerTest, OneRequestRunsToItsLength) {
  PuppetGroup group(Small());
  const uint64_t id = group.Submit(group.Make(Prompt(20, 1), 10));
  EXPECT_EQ(group.RunUntilIdle(), 10);
  group.ExpectSolo(id);
  EXPECT_EQ(group.of(id).outcome->reason, FinishReason::kLength);
  EXPECT_EQ(group.of(id).outcome->num_prompt_tokens, 20u);
  EXPECT_EQ(group.of(id).outcome->num_generated_tokens, 10u);
  group.ExpectIdle();
}

TEST_P(SchedulerTest, EveryEventHasTheCountsSoFar) {
  PuppetGroup group(Small());
  const absl::Time arrival = group.now();
  group.Submit(group.Make(Prompt(20, 1), 3));
  group.RunUntilIdle();
  Request request = group.Make(Prompt(20, 1), 3);
  request.arrival = arrival;
  group.Submit(request);
  const absl::Time admitted = group.now();
  std::vector<Event> events = group.StepForEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].kind, Event::Kind::kTokens);
  EXPECT_EQ(events[0].outcome.num_prompt_tokens, 20u);
  EXPECT_EQ(events[0].outcome.num_cached_tokens, 16u);
  EXPECT_EQ(events[0].outcome.num_generated_tokens, 1u);
  EXPECT_EQ(events[0].outcome.admitted, admitted - arrival);
  EXPECT_EQ(group.StepForEvents()[0].outcome.num_generated_tokens, 2u);
  events = group.StepForEvents();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[1].outcome.num_generated_tokens, 3u);
  EXPECT_EQ(events[1].outcome.first_token, admitted - arrival);
  EXPECT_EQ(events[1].outcome.finished, admitted - arrival + absl::Milliseconds(20));
}

TEST_P(SchedulerTest, NothingToDoIsNoPlan) {
  PuppetGroup group(Small());
  EXPECT_FALSE(group.Plan());
  group.Submit(group.Make(Prompt(20, 1), 10));
  for (uint32_t i = 0; i < GetParam(); ++i) EXPECT_TRUE(group.PlanOne());
  EXPECT_FALSE(group.PlanOne()) << "so many are with the ranks";
  group.Commit();
  group.RunUntilIdle();
  EXPECT_FALSE(group.Plan());
}

TEST_P(SchedulerTest, EveryChunkSizeGivesTheSameTokens) {
  for (uint32_t chunk : {0, 1, 7, 16}) {
    SchedulerOptions options = Small();
    options.max_prefill_chunk = chunk;
    PuppetGroup group(options);
    for (uint32_t n : {1, 15, 16, 17, 31, 32, 33, 100}) {
      group.Submit(group.Make(Prompt(n, n), 20));
    }
    group.RunUntilIdle();
    group.ExpectAllSolo();
  }
}

TEST_P(SchedulerTest, ManyDistinctRequestsKeepTheirAnswers) {
  PuppetGroup group(Small());
  for (uint32_t round = 0; round < 5; ++round) {
    for (uint32_t i = 0; i < 64; ++i) {
      group.Submit(group.Make(Prompt(1 + (i * 7 + round) % 60, round * 64 + i), 1 + i % 20));
    }
    group.RunUntilIdle();
  }
  group.ExpectAllSolo();
  group.ExpectIdle();
  EXPECT_EQ(group.rank().largest_batch(), 8u);
}

TEST_P(SchedulerTest, StopTokensEndAndAreNotFedBack) {
  PuppetGroup group(Small());
  Request request = group.Make(Prompt(20, 1), 100);
  const std::vector<uint32_t> all = PuppetRank::Solo(request);
  request.eos_ids = {all[4]};
  const uint64_t id = group.Submit(request);
  Request ignores = request;
  ignores.id = 100;
  ignores.ignore_eos = true;
  group.Submit(ignores);
  Request stops = request;
  stops.id = 101;
  stops.ignore_eos = true;
  stops.stop_token_ids = {all[2]};
  group.Submit(stops);
  Request at_least = request;
  at_least.id = 102;
  at_least.sampling.min_tokens = 30;
  group.Submit(at_least);
  group.RunUntilIdle();
  group.ExpectAllSolo();
  EXPECT_EQ(group.of(id).outcome->reason, FinishReason::kStopToken);
  EXPECT_EQ(group.of(id).outcome->stop_token_id, all[4]);
  EXPECT_LE(group.of(id).outcome->num_generated_tokens, 5u);
  EXPECT_EQ(group.of(100).outcome->reason, FinishReason::kLength);
  EXPECT_EQ(group.of(101).outcome->stop_token_id, all[2]);
  EXPECT_GT(group.of(102).outcome->num_generated_tokens, 30u);
}

TEST_P(SchedulerTest, NoTokensWantedIsNoTokens) {
  PuppetGroup group(Small());
  const uint64_t id = group.Submit(group.Make(Prompt(100, 1), 0));
  Request logprobs = group.Make(Prompt(20, 2), 0);
  logprobs.sampling.prompt_logprobs = true;
  group.Submit(logprobs);
  group.RunUntilIdle();
  EXPECT_THAT(group.of(id).token_ids, IsEmpty());
  EXPECT_EQ(group.of(id).outcome->reason, FinishReason::kLength);
  EXPECT_THAT(group.of(logprobs.id).token_ids, IsEmpty());
  EXPECT_THAT(group.of(logprobs.id).prompt_logprobs, SizeIs(19));
}

TEST_P(SchedulerTest, RefusesAtTheDoorWhatCouldNotRunAlone) {
  SchedulerOptions options = Small();
  options.num_blocks = 8;  // 128 tokens
  PuppetGroup group(options);
  EXPECT_EQ(group.TrySubmit(group.Make({}, 5)).code(), absl::StatusCode::kInvalidArgument);
  const absl::Status too_long = group.TrySubmit(group.Make(Prompt(500, 1), 13));
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(too_long.message(), AllOf(HasSubstr("513"), HasSubstr("512")));
  const absl::Status too_big = group.TrySubmit(group.Make(Prompt(100, 1), 30));
  EXPECT_EQ(too_big.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(too_big.message(), AllOf(HasSubstr("129"), HasSubstr("128")));
  EXPECT_EQ(group.TrySubmit(group.Make(Prompt(100, 1), ~0u)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(group.scheduler().MaxNewTokens(100), 29u);
  EXPECT_EQ(group.scheduler().MaxNewTokens(1000), 0u);
  group.Submit(group.Make(Prompt(100, 1), 29));
  Request late = group.Make(Prompt(5, 1), 5);
  late.deadline = group.now();
  EXPECT_EQ(group.TrySubmit(late).code(), absl::StatusCode::kDeadlineExceeded);
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST_P(SchedulerTest, AnIdIsRefusedOnlyWhileItRuns) {
  PuppetGroup group(Small());
  const Request request = group.Make(Prompt(5, 1), 5);
  group.Submit(request);
  EXPECT_EQ(group.TrySubmit(request).code(), absl::StatusCode::kAlreadyExists);
  group.RunUntilIdle();
  EXPECT_TRUE(group.TrySubmit(request).ok());
  group.RunUntilIdle();
}

TEST_P(SchedulerTest, AFullQueueRefusesAndRecovers) {
  SchedulerOptions options = Small();
  options.max_batch_seqs = 2;
  options.max_queued_requests = 8;
  PuppetGroup group(options);
  int num_refused = 0;
  for (uint32_t i = 0; i < 50; ++i) {
    const absl::Status status = group.TrySubmit(group.Make(Prompt(10, i), 10));
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("10 "), HasSubstr("max_queued_requests 8")));
    ++num_refused;
  }
  EXPECT_EQ(num_refused, 40);
  group.RunUntilIdle();
  group.ExpectAllSolo();
  group.Submit(group.Make(Prompt(10, 1), 10));
}

TEST_P(SchedulerTest, PromptLogprobsAreCompleteWithAndWithoutACache) {
  for (uint32_t n : {1, 15, 16, 17, 32, 33, 150}) {
    PuppetGroup group(Small());
    for (int round = 0; round < 3; ++round) {
      Request request = group.Make(Prompt(n, 1), 5);
      request.sampling.prompt_logprobs = round != 1;
      request.sampling.top_logprobs = 0;
      group.Submit(request);
      group.RunUntilIdle();
      group.ExpectSolo(request.id);
      const auto& outputs = group.of(request.id);
      EXPECT_THAT(outputs.logprobs, SizeIs(5));
      EXPECT_THAT(outputs.prompt_logprobs, SizeIs(round == 1 ? 0 : n - 1));
    }
  }
}

TEST_P(SchedulerTest, AResultThatDoesNotFitChangesNothing) {
  PuppetGroup group(Small());
  const uint64_t id = group.Submit(group.Make(Prompt(10, 1), 3));
  group.Plan();
  Scheduler& scheduler = group.scheduler();
  StepResult good;
  good.step = 1;
  good.outputs.resize(1);
  good.outputs[0].token_ids = {1};
  StepResult bad = good;
  bad.step = 2;
  EXPECT_EQ(scheduler.CommitStep(group.now(), bad).status().code(), absl::StatusCode::kInternal);
  bad = good;
  bad.outputs[0].slot = 1;
  EXPECT_FALSE(scheduler.CommitStep(group.now(), bad).ok());
  bad = good;
  bad.outputs[0].token_ids.clear();
  EXPECT_FALSE(scheduler.CommitStep(group.now(), bad).ok());
  bad = good;
  bad.outputs[0].logprobs.resize(1);
  EXPECT_FALSE(scheduler.CommitStep(group.now(), bad).ok());
  bad = good;
  bad.outputs.clear();
  EXPECT_FALSE(scheduler.CommitStep(group.now(), bad).ok());
  group.Commit();
  group.RunUntilIdle();
  group.ExpectSolo(id);
}

TEST_P(SchedulerTest, AnErrorOfOneRowHurtsOnlyItsRequest) {
  PuppetGroup group(Small());
  const uint64_t healthy = group.Submit(group.Make(Prompt(40, 1), 20));
  const uint64_t ill = group.Submit(group.Make(Prompt(40, 2), 20));
  group.rank().FailSeed(ill, "logits are not finite");
  group.RunUntilIdle();
  group.ExpectSolo(healthy);
  EXPECT_EQ(group.of(ill).outcome->reason, FinishReason::kError);
  EXPECT_EQ(group.of(ill).outcome->status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(group.of(ill).outcome->status.message(), HasSubstr("not finite"));
  group.ExpectIdle();
  EXPECT_EQ(group.scheduler().stats().num_cached_blocks, 3u) << "nothing of the failed one";
}

}  // namespace
}  // namespace shoal::router
