// KV that sequences share.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router_control/puppet_group.h"

namespace shoal::router {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

class SchedulerPrefixTest : public testing::TestWithParam<uint32_t> {
 protected:
  static SchedulerOptions Small() { return SmallOptions(/*max_plans_in_flight=*/GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(PlansInFlight, SchedulerPrefixTest, testing::Values(1, 2));

TEST_P(SchedulerPrefixTest, AHitChangesNothingButTheWork) {
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

TEST_P(SchedulerPrefixTest, APrefixThatSixteenBringAtOnceIsComputedOnce) {
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

TEST_P(SchedulerPrefixTest, AWaiterTakesOverWhenTheOwnerEnds) {
  SchedulerOptions options = Small();
  options.max_prefill_chunk = 16;
  PuppetGroup group(options);
  const uint64_t owner = group.Submit(group.Make(Prompt(129, 1, 0), 1));
  const uint64_t heir = group.Submit(group.Make(Prompt(129, 1, 1), 1));
  const uint64_t third = group.Submit(group.Make(Prompt(129, 1, 2), 1));
  group.Step();
  group.Step();
  EXPECT_THAT(group.last_plan().rows, SizeIs(1)) << "the others wait";
  EXPECT_THAT(group.in_flight(), IsEmpty()) << "for a prefix that may be there at the commit";
  group.Cancel(owner);
  group.PlanOne();
  EXPECT_THAT(group.last_plan().rows, SizeIs(1));
  ASSERT_THAT(group.last_plan().starts, SizeIs(1));
  EXPECT_EQ(group.last_plan().starts[0].num_cached_tokens, 32u) << "what the owner had done";
  group.RunUntilIdle();
  group.ExpectSolo(heir);
  group.ExpectSolo(third);
  EXPECT_EQ(group.rank().num_computed_tokens(), 128u + 2u);
}

TEST_P(SchedulerPrefixTest, AnUrgentWaiterLendsItsPlaceToTheOwner) {
  SchedulerOptions options = Small();
  options.max_batch_tokens = 16;
  options.aging_interval = absl::Hours(1);
  PuppetGroup group(options);
  Request owner = group.Make(Prompt(129, 1, 0), 1);
  owner.priority = Priority::kLow;
  group.Submit(owner);
  group.Step();
  group.CommitAll();
  group.Submit(group.Make(Prompt(300, 2), 1));  // goes before the owner
  group.PlanOne();
  ASSERT_THAT(group.last_plan().starts, SizeIs(1));
  Request urgent = group.Make(Prompt(129, 1, 1), 1);
  urgent.priority = Priority::kHigh;
  group.Submit(urgent);
  for (int i = 0; i < 9; ++i) group.Step();
  EXPECT_TRUE(group.of(urgent.id).outcome.has_value()) << "the long one had to wait for both";
  group.RunUntilIdle();
  group.ExpectAllSolo();
}

TEST_P(SchedulerPrefixTest, ACollidingHashIsNotAHit) {
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

TEST_P(SchedulerPrefixTest, EveryKindOfEndLeavesACacheThatIsRight) {
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

TEST_P(SchedulerPrefixTest, AConversationFindsItsGeneratedTokens) {
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

TEST_P(SchedulerPrefixTest, ACancelKeepsWhatWasComputed) {
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

TEST_P(SchedulerPrefixTest, SaltsDoNotShare) {
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

}  // namespace
}  // namespace shoal::router
