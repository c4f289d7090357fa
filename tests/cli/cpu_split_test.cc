#include "cli/cpu_split.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<int> kFour = {2, 3, 6, 7};

TEST(CpuSplitTest, RanksThatFillTheMachineGetDisjointCpus) {
  const CpuSplit split = SplitCpus(kFour, 4, false, 2, 0);
  EXPECT_EQ(split.threads, 2);
  EXPECT_THAT(split.cpus, ElementsAre(ElementsAre(2, 3), ElementsAre(6, 7)));
  EXPECT_FALSE(split.oversubscribed);
}

TEST(CpuSplitTest, AnUnevenShareRoundsDownAndIsStillPinned) {
  const CpuSplit split = SplitCpus(kFour, 4, false, 3, 0);
  EXPECT_EQ(split.threads, 1);
  EXPECT_THAT(split.cpus, ElementsAre(ElementsAre(2), ElementsAre(3), ElementsAre(6)));
}

TEST(CpuSplitTest, WithCpusToSpareAndNoChoiceRanksStayFree) {
  const CpuSplit split = SplitCpus(kFour, 4, false, 2, 1);
  EXPECT_EQ(split.threads, 1);
  EXPECT_THAT(split.cpus, ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_FALSE(split.oversubscribed);
}

TEST(CpuSplitTest, ChosenCpusArePinnedEvenWithSomeToSpare) {
  const CpuSplit split = SplitCpus(kFour, 4, true, 2, 1);
  EXPECT_THAT(split.cpus, ElementsAre(ElementsAre(2), ElementsAre(3)));
}

TEST(CpuSplitTest, MoreThreadsThanCpusAreOversubscribedAndFree) {
  for (const bool chosen : {false, true}) {
    const CpuSplit split = SplitCpus(kFour, 4, chosen, 2, 3);
    EXPECT_TRUE(split.oversubscribed);
    EXPECT_THAT(split.cpus, ElementsAre(IsEmpty(), IsEmpty()));
  }
  const CpuSplit split = SplitCpus({0, 1}, 2, false, 8, 0);
  EXPECT_EQ(split.threads, 1);
  EXPECT_TRUE(split.oversubscribed);
}

TEST(CpuSplitTest, AQuotaLimitsTheThreadsAndPinsNobodyUnasked) {
  const CpuSplit split = SplitCpus(kFour, 2, false, 2, 0);
  EXPECT_EQ(split.threads, 1);
  EXPECT_THAT(split.cpus, ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_FALSE(split.oversubscribed);
  EXPECT_EQ(SplitCpus(kFour, 3, false, 1, 0).threads, 3);
  EXPECT_TRUE(SplitCpus(kFour, 1, false, 2, 0).oversubscribed);
  const CpuSplit chosen = SplitCpus(kFour, 2, true, 2, 2);
  EXPECT_TRUE(chosen.oversubscribed);
  EXPECT_THAT(chosen.cpus, ElementsAre(ElementsAre(2, 3), ElementsAre(6, 7))) << "asked for";
}

TEST(ParseCpuListTest, ReadsNumbersAndRangesInAnyOrder) {
  EXPECT_THAT(*ParseCpuList("8,0-2"), ElementsAre(0, 1, 2, 8));
  EXPECT_THAT(*ParseCpuList("5-5"), ElementsAre(5));
}

TEST(ParseCpuListTest, RefusesAnythingElse) {
  for (const char* text :
       {"", "a", "1,", "-1", "3-1", "1-", "1-2-3", "4096", "0-99999999999", "1 2"}) {
    EXPECT_FALSE(ParseCpuList(text).ok()) << text;
  }
  EXPECT_THAT(std::string(ParseCpuList("1-3,2").status().message()), HasSubstr("CPU 2"));
}

}  // namespace
}  // namespace shoal::cli
