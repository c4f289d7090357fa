#include "model/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace shoal::model {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
constexpr MemoryDemand kDemand{.weight_bytes = 100 * kMiB,
                               .constant_bytes = 1 * kMiB,
                               .workspace_bytes = 19 * kMiB,
                               .bytes_per_block = kMiB,
                               .block_tokens = 16};

TEST(MemoryPlanTest, GivesEverySequenceItsFullLengthWhenMemoryAllows) {
  const auto plan = PlanMemory(
      kDemand, {.max_batch_seqs = 4, .max_seq_len = 100, .available_bytes = 1000 * kMiB});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_blocks, 4 * 7);
  EXPECT_EQ(plan->total_bytes(), (120 + 28) * kMiB);
  EXPECT_THAT(ToText(*plan), HasSubstr("KV cache 28.0 MiB (28 blocks"));
}

TEST(MemoryPlanTest, TakesAtMostFortyPercentOfARanksShareForTheCache) {
  const auto plan = PlanMemory(kDemand, {.max_batch_seqs = 64,
                                         .max_seq_len = 4096,
                                         .available_bytes = 1000 * kMiB,
                                         .ranks_on_machine = 2});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_blocks, 200);
}

TEST(MemoryPlanTest, KeepsToWhatWeightsLeave) {
  const auto plan = PlanMemory(
      kDemand, {.max_batch_seqs = 64, .max_seq_len = 4096, .available_bytes = 130 * kMiB});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_blocks, 10);
}

TEST(MemoryPlanTest, ObeysAnExplicitSize) {
  const auto plan = PlanMemory(kDemand, {.max_batch_seqs = 64,
                                         .max_seq_len = 4096,
                                         .kv_cache_bytes = 50 * kMiB + 1,
                                         .available_bytes = 1000 * kMiB});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_blocks, 50);
}

TEST(MemoryPlanTest, RefusesAModelThatDoesNotFitSayingEachPart) {
  const auto plan =
      PlanMemory(kDemand, {.max_batch_seqs = 1, .max_seq_len = 16, .available_bytes = 110 * kMiB});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("needs 120.0 MiB (weights 100.0 MiB, constants 1.0 MiB, workspace 19.0 "
                        "MiB) but there are 110.0 MiB a rank"));
}

TEST(MemoryPlanTest, RefusesACacheThatDoesNotFitSayingWhatWould) {
  const auto plan = PlanMemory(kDemand, {.max_batch_seqs = 1,
                                         .max_seq_len = 16,
                                         .kv_cache_bytes = 500 * kMiB,
                                         .available_bytes = 200 * kMiB});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("lower --kv-cache-bytes to at most 83886080"));
}

TEST(MemoryPlanTest, RefusesLessThanOneBlock) {
  EXPECT_EQ(PlanMemory(kDemand, {.max_batch_seqs = 1, .max_seq_len = 16, .kv_cache_bytes = 1000})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      PlanMemory(kDemand,
                 {.max_batch_seqs = 1, .max_seq_len = 16, .available_bytes = 120 * kMiB + 1000})
          .status()
          .code(),
      absl::StatusCode::kResourceExhausted);
}

TEST(MemoryPlanTest, UnknownMemoryRefusesNothing) {
  const auto plan = PlanMemory(kDemand, {.max_batch_seqs = 1024, .max_seq_len = 1 << 20});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_blocks, 1024 * 65536);
}

TEST(MemoryPlanTest, ReadsTheMachinesMemory) {
  EXPECT_GT(ReadAvailableMemory(), kMiB);
  EXPECT_LT(ReadAvailableMemory(), int64_t{1} << 50);
}

}  // namespace
}  // namespace shoal::model
