#include "cli/bench_load.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using testing::Each;
using testing::Lt;
using testing::Not;
using testing::SizeIs;

BenchLoad SmallLoad() {
  BenchLoad load;
  load.prompt_tokens = 40;
  load.vocab_size = 50;
  return load;
}

TEST(BenchLoadTest, EqualOptionsGiveEqualPrompts) {
  EXPECT_EQ(MakePrompt(SmallLoad(), 3), MakePrompt(SmallLoad(), 3));
  BenchLoad other = SmallLoad();
  other.seed = 2;
  EXPECT_NE(MakePrompt(other, 3), MakePrompt(SmallLoad(), 3));
}

TEST(BenchLoadTest, PromptsHaveTheirLengthAndIdsOfTheVocabularyOnly) {
  BenchLoad load = SmallLoad();
  load.end_token_ids = {0, 7, 49};
  for (uint32_t i = 0; i < 50; ++i) {
    const std::vector<uint32_t> prompt = MakePrompt(load, i);
    EXPECT_THAT(prompt, SizeIs(40));
    EXPECT_THAT(prompt, Each(Lt(50u)));
    EXPECT_THAT(prompt, Each(Not(testing::AnyOf(0u, 7u, 49u))));
  }
}

TEST(BenchLoadTest, SharesThePrefixAndNothingElse) {
  BenchLoad load = SmallLoad();
  load.shared_prefix_tokens = 25;
  const std::vector<uint32_t> a = MakePrompt(load, 0), b = MakePrompt(load, 1);
  const auto differs = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
  EXPECT_GE(differs, 25);
  EXPECT_LT(differs, 40);
  load.shared_prefix_tokens = 40;
  EXPECT_EQ(MakePrompt(load, 0), MakePrompt(load, 1));
}

TEST(BenchLoadTest, DistinctPromptsAreTakenInTurn) {
  BenchLoad load = SmallLoad();
  load.num_distinct = 3;
  EXPECT_EQ(MakePrompt(load, 1), MakePrompt(load, 4));
  EXPECT_NE(MakePrompt(load, 1), MakePrompt(load, 2));
}

TEST(BenchLoadTest, ArrivalsAscendFromZeroAtTheRate) {
  const std::vector<absl::Duration> arrivals = PoissonArrivals(10000, 50, 1);
  EXPECT_EQ(arrivals.front(), absl::ZeroDuration());
  EXPECT_TRUE(std::is_sorted(arrivals.begin(), arrivals.end()));
  EXPECT_NEAR(absl::ToDoubleSeconds(arrivals.back()), 200, 10);
  EXPECT_EQ(arrivals, PoissonArrivals(10000, 50, 1));
}

}  // namespace
}  // namespace shoal::cli
