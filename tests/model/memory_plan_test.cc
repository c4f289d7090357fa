#include "model/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
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

// A folder with the files of /proc and /sys that are looked at. 1000 MiB of memory.
class AvailableMemoryTest : public testing::Test {
 protected:
  AvailableMemoryTest() {
    std::string pattern = testing::TempDir() + "memory.XXXXXX";
    root_ = mkdtemp(pattern.data());
    Write("/proc/meminfo", "MemTotal: 4096000 kB\nMemAvailable: 1024000 kB\n");
  }
  ~AvailableMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  int64_t Mib() { return ReadAvailableMemory(root_) / kMiB; }

  std::string root_;
};

TEST_F(AvailableMemoryTest, IsTheMachinesWithoutLimits) {
  EXPECT_EQ(Mib(), 1000);
  Write("/proc/self/cgroup", "0::/pod");
  Write("/sys/fs/cgroup/pod/memory.max", "max");
  Write("/sys/fs/cgroup/pod/memory.current", "1");
  EXPECT_EQ(Mib(), 1000);
}

TEST_F(AvailableMemoryTest, IsWhatTheNarrowestGroupLeavesAndUnusedFilePagesAreFree) {
  Write("/proc/self/cgroup", "0::/pods/one");
  Write("/sys/fs/cgroup/pods/memory.max", std::to_string(500 * kMiB));
  Write("/sys/fs/cgroup/pods/memory.current", std::to_string(200 * kMiB));
  EXPECT_EQ(Mib(), 300);
  Write("/sys/fs/cgroup/pods/memory.stat",
        "anon 1\ninactive_file " + std::to_string(150 * kMiB) + "\nactive_file 7");
  EXPECT_EQ(Mib(), 450);
  Write("/sys/fs/cgroup/pods/one/memory.max", std::to_string(100 * kMiB));
  Write("/sys/fs/cgroup/pods/one/memory.current", std::to_string(99 * kMiB));
  EXPECT_EQ(Mib(), 1);
}

TEST_F(AvailableMemoryTest, KnowsTheFirstVersionOfControlGroups) {
  Write("/proc/self/cgroup", "4:memory:/docker/x\n1:cpu:/");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(300 * kMiB));
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(250 * kMiB));
  Write("/sys/fs/cgroup/memory/memory.stat",
        "inactive_file 1\ntotal_inactive_file " + std::to_string(50 * kMiB));
  EXPECT_EQ(Mib(), 100);
}

TEST(MemoryPlanTest, ReadsTheMachinesMemory) {
  EXPECT_GT(ReadAvailableMemory(), kMiB);
  EXPECT_LT(ReadAvailableMemory(), int64_t{1} << 50);
}

}  // namespace
}  // namespace shoal::model
