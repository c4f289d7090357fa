// Random histories of a Scheduler: whatever happens, requests get the tokens they have alone.

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router_control/puppet_group.h"

namespace shoal::router {
namespace {

struct History {
  uint64_t plans = 0;
  SchedulerStats stats;
};

// Prompts from a tiny alphabet, so that prefixes are shared, some of them continued answers.
std::vector<uint32_t> RandomPrompt(std::mt19937* random, uint32_t max_len) {
  std::vector<uint32_t> prompt(1 + (*random)() % max_len);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = i % 5 == 0 ? (*random)() % 2 : i % 3;
  return prompt;
}

void SubmitRandom(std::mt19937* random, PuppetGroup* group, uint32_t max_tokens) {
  const uint32_t num_prompt = max_tokens / 2;
  Request request = group->Make(RandomPrompt(random, num_prompt), (*random)() % (max_tokens / 2));
  request.sampling.seed = (*random)() % 3;
  request.priority = static_cast<Priority>((*random)() % 3);
  if ((*random)() % 4 == 0) request.eos_ids.assign(1, (*random)() % PuppetRank::kNumTokens);
  if ((*random)() % 8 == 0) request.sampling.prompt_logprobs = true;
  if ((*random)() % 8 == 0) request.sampling.top_logprobs = 0;
  if ((*random)() % 8 == 0) request.cache_salt = "salt";
  if ((*random)() % 8 == 0) {
    request.deadline = group->now() + absl::Seconds(1 + (*random)() % 50);
  }
  if ((*random)() % 8 == 0) {  // a resumed stream
    const std::vector<uint32_t> answer = PuppetRank::Solo(request);
    if (answer.size() > 1 && request.eos_ids.empty()) {
      request.num_prompt_tokens = static_cast<uint32_t>(request.token_ids.size());
      request.token_ids.insert(request.token_ids.end(), answer.begin(),
                               answer.begin() + (*random)() % answer.size());
    }
  }
  const absl::Status status = group->TrySubmit(request);
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kResourceExhausted) << status;
}

History Play(const SchedulerOptions& options, uint32_t seed, int num_operations) {
  std::mt19937 random(seed);
  PuppetGroup group(options);
  const uint32_t max_tokens = std::min(options.num_blocks * options.block_size, 160u);
  for (int i = 0; i < num_operations && !testing::Test::HasFailure(); ++i) {
    const uint32_t operation = random() % 100;
    if (operation < 20) {
      SubmitRandom(&random, &group, max_tokens);
    } else if (operation < 24) {
      group.Cancel(1 + random() % (i / 5 + 1));
    } else if (operation < 60) {
      group.PlanOne();
    } else if (operation < 98) {
      if (!group.in_flight().empty()) group.Commit();
      group.Advance(absl::Milliseconds(10));
    } else if (operation < 99) {
      group.Advance(absl::Seconds(1));
      group.Expire();
    } else if (random() % 4 == 0) {
      group.Lose();
    }
    group.scheduler().CheckInvariants();
    EXPECT_THAT(group.rank().errors(), testing::IsEmpty()) << "operation " << i;
  }
  group.RunUntilIdle();
  group.ExpectIdle();
  group.ExpectSoloUnlessCut();
  return {.plans = group.history(), .stats = group.scheduler().stats()};
}

struct Depth {
  uint32_t max_plans_in_flight;
  uint32_t num_stages;
};

class SchedulerRandomTest : public testing::TestWithParam<Depth> {
 protected:
  static SchedulerOptions Tight();
};

INSTANTIATE_TEST_SUITE_P(PlansInFlight, SchedulerRandomTest,
                         testing::Values(Depth{1, 1}, Depth{2, 1}, Depth{3, 1}));
INSTANTIATE_TEST_SUITE_P(Pipelines, SchedulerRandomTest,
                         testing::Values(Depth{1, 2}, Depth{2, 2}, Depth{3, 2}, Depth{4, 4}));

SchedulerOptions SchedulerRandomTest::Tight() {
  SchedulerOptions options;
  options.max_plans_in_flight = GetParam().max_plans_in_flight;
  options.num_stages = GetParam().num_stages;
  options.num_blocks = 48;
  options.block_size = 4;
  options.max_batch_tokens = 32;
  options.max_batch_seqs = 6;
  options.max_seq_len = 512;
  options.max_queued_requests = 30;
  options.aging_interval = absl::Seconds(1);
  return options;
}

TEST_P(SchedulerRandomTest, FiveThousandOperations) {
  uint64_t num_preemptions = 0;
  uint64_t num_hits = 0;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    const History history = Play(Tight(), seed, 5000);
    num_preemptions += history.stats.num_preemptions;
    num_hits += history.stats.num_prefix_hits;
  }
  EXPECT_GT(num_preemptions, 20u);
  EXPECT_GT(num_hits, 1000u);
}

TEST_P(SchedulerRandomTest, SmallChunks) {
  SchedulerOptions options = Tight();
  options.max_prefill_chunk = 3;
  Play(options, 10, 3000);
}

TEST_P(SchedulerRandomTest, CollidingHashes) {
  SchedulerOptions options = Tight();
  options.hash_mask = 0x7;
  Play(options, 11, 3000);
}

TEST_P(SchedulerRandomTest, NoPrefixCache) {
  SchedulerOptions options = Tight();
  options.enable_prefix_cache = false;
  EXPECT_EQ(Play(options, 12, 3000).stats.num_prefix_hits, 0u);
}

TEST_P(SchedulerRandomTest, LargeBlocks) {
  SchedulerOptions options = Tight();
  options.block_size = 16;
  options.num_blocks = 12;
  Play(options, 13, 3000);
}

TEST_P(SchedulerRandomTest, TheSameHistoryGivesTheSamePlans) {
  EXPECT_EQ(Play(Tight(), 7, 1500).plans, Play(Tight(), 7, 1500).plans);
  EXPECT_NE(Play(Tight(), 7, 1500).plans, Play(Tight(), 8, 1500).plans);
}

}  // namespace
}  // namespace shoal::router
