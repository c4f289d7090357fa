#include "base/file_limit.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace shoal::base {
namespace {

TEST(FileLimitTest, RaisesTheSoftLimitToTheHardOne) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 100;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  RaiseFileLimit();
  rlimit now = {};
  getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, std::min<rlim_t>(now.rlim_max, 1 << 16));
  EXPECT_EQ(now.rlim_max, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace shoal::base
