#include "base/cpu_quota.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace shoal::base {
namespace {

// A folder with the files of /proc and /sys that are looked at.
class CpuQuotaTest : public testing::Test {
 protected:
  CpuQuotaTest() {
    std::string pattern = testing::TempDir() + "cpu-quota.XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~CpuQuotaTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

  std::string root_;
};

TEST_F(CpuQuotaTest, WithoutGroupsThereIsNoLimit) { EXPECT_TRUE(std::isinf(CpuQuota(root_))); }

TEST_F(CpuQuotaTest, TheNarrowestGroupOnTheWayUpCounts) {
  Write("/proc/self/cgroup", "0::/pods/one");
  Write("/sys/fs/cgroup/pods/one/cpu.max", "max 100000");
  EXPECT_TRUE(std::isinf(CpuQuota(root_)));
  Write("/sys/fs/cgroup/pods/cpu.max", "765000 100000");
  EXPECT_DOUBLE_EQ(CpuQuota(root_), 7.65);
  Write("/sys/fs/cgroup/pods/one/cpu.max", "200000 100000");
  EXPECT_DOUBLE_EQ(CpuQuota(root_), 2);
}

TEST_F(CpuQuotaTest, AContainerSeesItsGroupAtTheRoot) {
  Write("/proc/self/cgroup", "0::/docker/not/here");
  Write("/sys/fs/cgroup/cpu.max", "150000 100000");
  EXPECT_DOUBLE_EQ(CpuQuota(root_), 1.5);
}

TEST_F(CpuQuotaTest, TheFirstVersionsControllerCounts) {
  Write("/proc/self/cgroup", "5:memory:/a\n3:cpu,cpuacct:/a\n2:cpuset:/");
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1");
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000");
  EXPECT_TRUE(std::isinf(CpuQuota(root_)));
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000");
  EXPECT_DOUBLE_EQ(CpuQuota(root_), 0.5);
}

TEST(UsableCpusTest, AreWholeCpusOfTheQuotaAndAtLeastOne) {
  EXPECT_EQ(UsableCpus(16, std::numeric_limits<double>::infinity()), 16);
  EXPECT_EQ(UsableCpus(16, 7.65), 7);
  EXPECT_EQ(UsableCpus(4, 7.65), 4);
  EXPECT_EQ(UsableCpus(16, 0.5), 1);
  EXPECT_GE(UsableCpus(), 1);
}

}  // namespace
}  // namespace shoal::base
