#include "router/control/scheduler.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router_control/puppet_group.h"

namespace shoal::router {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

SchedulerOptions Small() {
  SchedulerOptions options;
  options.num_blocks = 64;
  options.max_batch_tokens = 64;
  options.max_batch_seqs = 8;
  options.max_seq_len = 512;
  options.max_queued_requests = 100;
  return options;
}

TEST(SchedulerTest, OneRequestRunsToItsLength) {
  PuppetGroup group(Small());
  const uint64_t id = group.Submit(group.Make(Prompt(20, 1), 10));
  EXPECT_EQ(group.RunUntilIdle(), 10);
  group.ExpectSolo(id);
  EXPECT_EQ(group.of(id).outcome->reason, FinishReason::kLength);
  EXPECT_EQ(group.of(id).outcome->num_prompt_tokens, 20u);
  EXPECT_EQ(group.of(id).outcome->num_generated_tokens, 10u);
  group.ExpectIdle();
}

TEST(SchedulerTest, EveryEventHasTheCountsSoFar) {
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

TEST(SchedulerTest, NothingToDoIsNoPlan) {
  PuppetGroup group(Small());
  EXPECT_FALSE(group.Plan());
  group.Submit(group.Make(Prompt(20, 1), 10));
  EXPECT_TRUE(group.Plan());
  EXPECT_EQ(group.scheduler().PlanStep(group.now()), std::nullopt) << "one is with the ranks";
  group.Commit();
  group.RunUntilIdle();
  EXPECT_FALSE(group.Plan());
}

TEST(SchedulerTest, EveryChunkSizeGivesTheSameTokens) {
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

TEST(SchedulerTest, StepsMixDecodesAndPrefills) {
  PuppetGroup group(Small());
  group.Submit(group.Make(Prompt(10, 1), 20));
  group.Step();
  group.Submit(group.Make(Prompt(200, 2), 5));
  group.Step();
  ASSERT_THAT(group.last_plan().rows, SizeIs(2));
  EXPECT_EQ(group.last_plan().rows[0].source, StepRow::Source::kLastSample);
  EXPECT_EQ(group.last_plan().rows[1].num_tokens, 63u) << "what the decode leaves of 64";
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST(SchedulerTest, ManyDistinctRequestsKeepTheirAnswers) {
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

TEST(SchedulerTest, StopTokensEndAndAreNotFedBack) {
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

TEST(SchedulerTest, NoTokensWantedIsNoTokens) {
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

TEST(SchedulerTest, RefusesAtTheDoorWhatCouldNotRunAlone) {
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

TEST(SchedulerTest, AnIdIsRefusedOnlyWhileItRuns) {
  PuppetGroup group(Small());
  const Request request = group.Make(Prompt(5, 1), 5);
  group.Submit(request);
  EXPECT_EQ(group.TrySubmit(request).code(), absl::StatusCode::kAlreadyExists);
  group.RunUntilIdle();
  EXPECT_TRUE(group.TrySubmit(request).ok());
  group.RunUntilIdle();
}

TEST(SchedulerTest, AFullQueueRefusesAndRecovers) {
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

// --- Order, preemption, starvation ---

TEST(SchedulerTest, PreemptsYoungestWhenBlocksRunOut) {
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

TEST(SchedulerTest, ANewcomerLeavesATenthOfThePoolFree) {
  for (const auto& [num_tokens, fits] : {std::pair(112, true), std::pair(113, false)}) {
    SchedulerOptions options = Small();
    options.num_blocks = 20;
    options.max_batch_tokens = 512;
    PuppetGroup group(options);
    group.Submit(group.Make(Prompt(160, 1), 20));
    group.Step();
    group.Submit(group.Make(Prompt(num_tokens, 2), 5));
    group.Step();  // the first one's 11th block; 7 and a tenth of 20 fit into the other 9
    EXPECT_THAT(group.last_plan().starts, SizeIs(fits ? 1 : 0)) << num_tokens;
    group.RunUntilIdle();
    group.ExpectAllSolo();
  }
}

TEST(SchedulerTest, SmallRequestsDoNotOvertakeALargeOne) {
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

TEST(SchedulerTest, ThirtyRequestsOfMostOfThePoolAllFinish) {
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

TEST(SchedulerTest, RandomLengthsFinishInAPoolForTwo) {
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

TEST(SchedulerTest, TheOnlyRequestMayFillThePool) {
  SchedulerOptions options = Small();
  options.num_blocks = 8;
  PuppetGroup group(options);
  for (int round = 0; round < 3; ++round) group.Submit(group.Make(Prompt(64, 1), 65));
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST(SchedulerTest, HighPriorityTakesThePlaceOfLow) {
  SchedulerOptions options = Small();
  options.max_batch_seqs = 2;
  PuppetGroup group(options);
  Request low = group.Make(Prompt(20, 1), 50);
  low.priority = Priority::kLow;
  group.Submit(low);
  const uint64_t normal = group.Submit(group.Make(Prompt(20, 2), 50));
  group.Step();
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

TEST(SchedulerTest, EqualPriorityWaitsForItsTurn) {
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

TEST(SchedulerTest, TheEarlierDeadlineGoesFirst) {
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

TEST(SchedulerTest, LowPriorityIsNotStarved) {
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

// --- Prefix cache ---

TEST(SchedulerTest, AHitChangesNothingButTheWork) {
  for (uint32_t chunk : {0, 7}) {
    SchedulerOptions options = Small();
    options.max_prefill_chunk = chunk;
    PuppetGroup group(options);
    for (uint32_t n : {15, 16, 17, 31, 32, 33, 48}) {
      uint64_t cold = 0;
      for (int round = 0; round < 4; ++round) {
        const uint64_t before = group.rank().num_computed_tokens();
        const uint64_t id = group.Submit(group.Make(Prompt(n, n), 20));
        group.RunUntilIdle();
        group.ExpectSolo(id);
        const uint64_t work = group.rank().num_computed_tokens() - before;
        if (round == 0) cold = work;
        const uint32_t hit = round == 0 ? 0 : (n - 1) / 16 * 16;
        EXPECT_EQ(group.of(id).outcome->num_cached_tokens, hit) << n;
        EXPECT_EQ(work, cold - hit) << n;
      }
    }
  }
}

TEST(SchedulerTest, APrefixThatSixteenBringAtOnceIsComputedOnce) {
  for (uint32_t chunk : {0, 16}) {
    SchedulerOptions options = Small();
    options.max_batch_seqs = 16;
    options.max_prefill_chunk = chunk;
    PuppetGroup group(options);
    for (uint32_t i = 0; i < 16; ++i) group.Submit(group.Make(Prompt(129, 1, i), 1));
    group.RunUntilIdle();
    group.ExpectAllSolo();
    EXPECT_EQ(group.rank().num_computed_tokens(), 128u + 16u);
    EXPECT_EQ(group.scheduler().stats().num_prefix_hits, 15u * 128);
    EXPECT_EQ(group.scheduler().stats().num_prefix_queries, 16u * 129);
  }
}

TEST(SchedulerTest, AWaiterTakesOverWhenTheOwnerEnds) {
  SchedulerOptions options = Small();
  options.max_prefill_chunk = 16;
  PuppetGroup group(options);
  const uint64_t owner = group.Submit(group.Make(Prompt(129, 1, 0), 1));
  const uint64_t heir = group.Submit(group.Make(Prompt(129, 1, 1), 1));
  const uint64_t third = group.Submit(group.Make(Prompt(129, 1, 2), 1));
  group.Step();
  group.Step();
  EXPECT_THAT(group.last_plan().rows, SizeIs(1)) << "the others wait";
  group.Cancel(owner);
  group.Step();
  EXPECT_THAT(group.last_plan().rows, SizeIs(1));
  ASSERT_THAT(group.last_plan().starts, SizeIs(1));
  EXPECT_EQ(group.last_plan().starts[0].num_cached_tokens, 32u) << "what the owner had done";
  group.RunUntilIdle();
  group.ExpectSolo(heir);
  group.ExpectSolo(third);
  EXPECT_EQ(group.rank().num_computed_tokens(), 128u + 2u);
}

TEST(SchedulerTest, AnUrgentWaiterLendsItsPlaceToTheOwner) {
  SchedulerOptions options = Small();
  options.max_batch_tokens = 16;
  options.aging_interval = absl::Hours(1);
  PuppetGroup group(options);
  Request owner = group.Make(Prompt(129, 1, 0), 1);
  owner.priority = Priority::kLow;
  group.Submit(owner);
  group.Step();
  group.Submit(group.Make(Prompt(300, 2), 1));  // goes before the owner
  group.Step();
  ASSERT_THAT(group.last_plan().starts, SizeIs(1));
  Request urgent = group.Make(Prompt(129, 1, 1), 1);
  urgent.priority = Priority::kHigh;
  group.Submit(urgent);
  for (int i = 0; i < 9; ++i) group.Step();
  EXPECT_TRUE(group.of(urgent.id).outcome.has_value()) << "the long one had to wait for both";
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST(SchedulerTest, ACollidingHashIsNotAHit) {
  SchedulerOptions options = Small();
  options.num_blocks = 512;
  options.hash_mask = 0xff;
  PuppetGroup group(options);
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint32_t> prompt(1 + random() % 40);
    for (uint32_t& token : prompt) token = random() % 3;
    group.Submit(group.Make(prompt, 1 + random() % 4));
    group.Step();
  }
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST(SchedulerTest, EveryKindOfEndLeavesACacheThatIsRight) {
  PuppetGroup group(Small());
  const std::vector<uint32_t> prompt = Prompt(40, 1);
  Request stopped = group.Make(prompt, 50);
  stopped.eos_ids = {PuppetRank::Solo(stopped)[7]};
  group.Submit(stopped);
  const uint64_t cancelled = group.Submit(group.Make(prompt, 50));
  const uint64_t finished = group.Submit(group.Make(prompt, 50));
  group.Submit(group.Make(prompt, 30));
  for (int i = 0; i < 12; ++i) group.Step();
  group.Plan();
  group.Cancel(cancelled);
  group.scheduler().Finish(finished);
  group.Commit();
  group.RunUntilIdle();
  EXPECT_FALSE(group.of(finished).outcome.has_value()) << "its caller said it";
  group.ExpectIdle();
  for (uint32_t n : {16, 17, 32, 33, 40}) {
    Request again = group.Make(Prompt(n, 1), 20);
    group.Submit(again);
    group.RunUntilIdle();
    group.ExpectSolo(again.id);
  }
}

TEST(SchedulerTest, AConversationFindsItsGeneratedTokens) {
  PuppetGroup group(Small());
  const Request first = group.Make(Prompt(20, 1), 50);
  group.Submit(first);
  group.RunUntilIdle();
  Request second = first;
  second.id = 200;
  const std::vector<uint32_t> answer = PuppetRank::Solo(first);
  second.token_ids.insert(second.token_ids.end(), answer.begin(), answer.end());
  second.token_ids.push_back(7);
  group.Submit(second);
  group.RunUntilIdle();
  group.ExpectSolo(200);
  EXPECT_EQ(group.of(200).outcome->num_cached_tokens, 64u) << "of 69 with KV";
}

TEST(SchedulerTest, ACancelKeepsWhatWasComputed) {
  PuppetGroup group(Small());
  const Request first = group.Make(Prompt(50, 1), 100);
  group.Submit(first);
  group.Step();
  group.Cancel(first.id);
  EXPECT_EQ(group.of(first.id).outcome->reason, FinishReason::kCancelled);
  Request again = group.Make(Prompt(50, 1), 5);
  again.token_ids.insert(again.token_ids.end(), {1, 2, 3, 4, 5});
  group.Submit(again);
  group.RunUntilIdle();
  group.ExpectSolo(again.id);
  EXPECT_EQ(group.of(again.id).outcome->num_cached_tokens, 48u);
}

TEST(SchedulerTest, SaltsDoNotShare) {
  PuppetGroup group(Small());
  for (const char* salt : {"a", "b", "a"}) {
    Request request = group.Make(Prompt(50, 1), 5);
    request.cache_salt = salt;
    group.Submit(request);
    group.RunUntilIdle();
  }
  EXPECT_EQ(group.of(2).outcome->num_cached_tokens, 0u);
  EXPECT_EQ(group.of(3).outcome->num_cached_tokens, 48u);
  group.ExpectAllSolo();
}

// --- Logprobs ---

TEST(SchedulerTest, PromptLogprobsAreCompleteWithAndWithoutACache) {
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

TEST(SchedulerTest, PromptLogprobsSurviveALossInTheMiddle) {
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

// --- Cancel, deadline, errors ---

TEST(SchedulerTest, ACancelInFlightFreesBlocksAtTheCommit) {
  PuppetGroup group(Small());
  const uint64_t id = group.Submit(group.Make(Prompt(50, 1), 100));
  const uint64_t other = group.Submit(group.Make(Prompt(50, 2), 20));
  group.Step();
  group.Plan();
  group.Cancel(id);
  EXPECT_EQ(group.of(id).outcome->reason, FinishReason::kCancelled);
  EXPECT_EQ(group.of(id).outcome->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(group.scheduler().stats().num_held_blocks, 8u) << "the ranks still write to them";
  group.Commit();
  EXPECT_EQ(group.scheduler().stats().num_held_blocks, 4u);
  group.Cancel(id);
  group.RunUntilIdle();
  group.ExpectSolo(other);
  group.ExpectIdle();
}

TEST(SchedulerTest, AnIdMayComeBackWhileItsOldPlanRuns) {
  PuppetGroup group(Small());
  Request request = group.Make(Prompt(50, 1), 100);
  group.Submit(request);
  group.Plan();
  group.Cancel(request.id);
  request.max_tokens = 7;
  group.Submit(request);
  group.Commit();
  group.RunUntilIdle();
  group.ExpectSolo(request.id);
}

TEST(SchedulerTest, AThousandAbortedStreamsLeaveNothingBehind) {
  PuppetGroup group(Small());
  std::mt19937 random(4);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t id = group.Submit(group.Make(Prompt(1 + random() % 90, i % 7), 50));
    for (int steps = random() % 4; steps > 0; --steps) group.Step();
    if (random() % 2 == 0) group.Plan();
    group.Cancel(id);
    if (random() % 2 == 0) group.Step();
  }
  group.RunUntilIdle();
  group.ExpectIdle();
  const uint64_t id = group.Submit(group.Make(Prompt(30, 1000), 10));
  EXPECT_EQ(group.RunUntilIdle(), 10);
  group.ExpectSolo(id);
}

TEST(SchedulerTest, DeadlinesEndRequestsWhereverTheyAre) {
  SchedulerOptions options = Small();
  options.max_batch_seqs = 1;
  PuppetGroup group(options);
  Request running = group.Make(Prompt(20, 1), 100);
  running.deadline = group.now() + absl::Seconds(2);
  group.Submit(running);
  Request waiting = group.Make(Prompt(20, 2), 100);
  waiting.deadline = group.now() + absl::Seconds(3);
  group.Submit(waiting);
  const uint64_t patient = group.Submit(group.Make(Prompt(20, 3), 5));
  group.Step();
  EXPECT_EQ(group.scheduler().NextDeadline(), running.deadline);
  group.Expire();
  EXPECT_FALSE(group.of(running.id).outcome.has_value());
  group.Plan();
  group.Advance(absl::Seconds(4));
  group.Expire();
  for (uint64_t id : {running.id, waiting.id}) {
    ASSERT_TRUE(group.of(id).outcome.has_value());
    EXPECT_EQ(group.of(id).outcome->reason, FinishReason::kDeadline);
    EXPECT_EQ(group.of(id).outcome->status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  group.Commit();
  group.RunUntilIdle();
  group.ExpectSolo(patient);
  EXPECT_EQ(group.scheduler().NextDeadline(), absl::InfiniteFuture());
}

TEST(SchedulerTest, AnErrorOfOneRowHurtsOnlyItsRequest) {
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

TEST(SchedulerTest, AResultThatDoesNotFitChangesNothing) {
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

TEST(SchedulerTest, AStallIsCountedOnceAndEndsWithProgress) {
  PuppetGroup group(Small());
  group.Submit(group.Make(Prompt(10, 1), 30));
  group.Plan();
  group.Advance(absl::Seconds(9));
  group.Expire();
  EXPECT_FALSE(group.scheduler().is_stalled());
  EXPECT_EQ(group.scheduler().NextDeadline(), group.now() + absl::Seconds(1));
  group.Advance(absl::Seconds(1));
  group.Expire();
  group.Expire();
  EXPECT_TRUE(group.scheduler().is_stalled());
  EXPECT_EQ(group.scheduler().stats().num_stalls, 1u);
  group.Commit();
  EXPECT_FALSE(group.scheduler().is_stalled());
  group.RunUntilIdle();
  group.Advance(absl::Hours(1));
  group.Expire();
  EXPECT_EQ(group.scheduler().stats().num_stalls, 1u) << "idle is no stall";
}

// --- A lost group ---

TEST(SchedulerTest, StreamsOutliveTheirRanks) {
  for (bool in_flight : {false, true}) {
    PuppetGroup group(Small());
    for (uint32_t i = 0; i < 12; ++i) group.Submit(group.Make(Prompt(10 + i * 9, i % 4), 40));
    for (int i = 0; i < 15; ++i) group.Step();
    if (in_flight) group.Plan();
    group.Lose();
    EXPECT_EQ(group.scheduler().stats().num_cached_blocks, 0u);
    group.RunUntilIdle();
    group.ExpectAllSolo();
    group.ExpectIdle();
  }
}

TEST(SchedulerTest, ACancelInFlightDoesNotSurviveALoss) {
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

TEST(SchedulerTest, APoisonRequestEndsAlone) {
  PuppetGroup group(Small());
  std::vector<uint64_t> ids;
  for (uint32_t i = 0; i < 5; ++i) ids.push_back(group.Submit(group.Make(Prompt(30, i), 20)));
  const uint64_t poison = ids[2];
  const auto has_poison = [&] {
    const uint64_t num_ended = group.of(poison).num_terminal_events;
    if (num_ended > 0) return false;
    for (const SequenceStart& start : group.last_plan().starts) {
      if (start.sampling.seed == poison) return true;
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

TEST(SchedulerTest, SuspectsAreReplayedOneByOneThenTogether) {
  PuppetGroup group(Small());
  for (uint32_t i = 0; i < 3; ++i) group.Submit(group.Make(Prompt(20, i), 20));
  for (int loss = 0; loss < 2; ++loss) {
    group.Plan();
    group.Lose();
  }
  group.Submit(group.Make(Prompt(20, 9), 20));
  for (uint64_t suspect = 1; suspect <= 3; ++suspect) {
    group.Step();
    EXPECT_THAT(group.last_plan().rows, SizeIs(1));
    ASSERT_THAT(group.last_plan().starts, SizeIs(1));
    EXPECT_EQ(group.last_plan().starts[0].sampling.seed, suspect);
  }
  group.Step();
  EXPECT_THAT(group.last_plan().rows, SizeIs(4));
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST(SchedulerTest, TwoLossesFarApartMakeNoSuspect) {
  PuppetGroup group(Small());
  const uint64_t one = group.Submit(group.Make(Prompt(30, 1), 60));
  group.Step();
  group.Plan();
  group.Lose();
  group.Step();
  group.Lose();  // between steps: nobody was in a running plan
  group.Step();
  group.Plan();
  group.Lose();
  group.Submit(group.Make(Prompt(30, 2), 60));
  group.Step();
  EXPECT_THAT(group.last_plan().rows, SizeIs(2)) << "nobody runs alone";
  group.RunUntilIdle();
  group.ExpectAllSolo();
  EXPECT_EQ(group.of(one).num_terminal_events, 1);
}

TEST(SchedulerTest, FailAllEndsEveryRequest) {
  PuppetGroup group(Small());
  for (uint32_t i = 0; i < 20; ++i) group.Submit(group.Make(Prompt(30, i), 60));
  group.Step();
  group.Plan();
  const std::vector<Event> events =
      group.scheduler().FailAll(group.now(), absl::UnavailableError("the group is gone"));
  EXPECT_THAT(events, SizeIs(20));
  for (const Event& event : events) {
    EXPECT_EQ(event.kind, Event::Kind::kFinished);
    EXPECT_EQ(event.outcome.status.code(), absl::StatusCode::kUnavailable);
  }
  group.Lose();
  group.ExpectIdle();
}

}  // namespace
}  // namespace shoal::router
