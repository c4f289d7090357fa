#include "tests/simulation/forked.h"

#include <iostream>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::simulation {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(RunForkedTest, TellsWhatTheChildSaid) {
  const auto result = RunForked(absl::Seconds(30), [] {
    std::cerr << "one\ntwo\n";
    return true;
  });
  EXPECT_TRUE(result.ok);
  EXPECT_THAT(result.lines, ElementsAre("one", "two"));
  EXPECT_FALSE(RunForked(absl::Seconds(30), [] { return false; }).ok);
}

TEST(RunForkedTest, KeepsTheLastLines) {
  const auto result = RunForked(absl::Seconds(30), [] {
    for (int i = 0; i < 1000; ++i) std::cerr << "line " << i << "\n";
    return true;
  });
  EXPECT_EQ(result.lines.size(), ForkedResult::kMaxLines);
  EXPECT_EQ(result.lines.back(), "line 999");
}

TEST(RunForkedTest, SurvivesACheck) {
  const auto result = RunForked(absl::Seconds(30), [] {
    CHECK_EQ(1, 2) << "by the test";
    return true;
  });
  EXPECT_FALSE(result.ok);
  EXPECT_THAT(result.lines, Contains(HasSubstr("by the test")));
  EXPECT_THAT(result.lines.back(), HasSubstr("signal 6"));
}

TEST(RunForkedTest, EndsWhatDoesNotEnd) {
  const auto result = RunForked(absl::Milliseconds(20), [] {
    for (volatile bool goes_on = true; goes_on;) {
    }
    return true;
  });
  EXPECT_FALSE(result.ok);
  EXPECT_THAT(result.lines.back(), HasSubstr("did not end within 20ms"));
}

}  // namespace
}  // namespace shoal::simulation
