#pragma once

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

// How many CPUs this process may keep busy. A control group may hold it to a share of their time
// (Docker's --cpus, Kubernetes' limits): threads above that share are stopped in mid-step for the
// rest of each period, and those that wait for them with them.

namespace shoal::base {

// The CPUs that the scheduler may put this process on, ascending. Never empty.
inline std::vector<int> AvailableCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

namespace internal {

inline std::string ReadFirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Of one group: quota / period, infinity when there is none.
inline double QuotaOf(absl::string_view quota, absl::string_view period) {
  double used = 0, whole = 0;
  if (!absl::SimpleAtod(quota, &used) || !absl::SimpleAtod(period, &whole) || used <= 0 ||
      whole <= 0) {
    return std::numeric_limits<double>::infinity();  // "max", -1, no such file
  }
  return used / whole;
}

// The smallest along the path from the group up to its hierarchy's root. In a container the path is
// the host's and only the root is there.
template <typename ReadQuota>
double SmallestQuota(absl::string_view mount, absl::string_view group, const ReadQuota& read) {
  double smallest = read(std::string(mount));
  for (std::string path(group); path.size() > 1; path.resize(path.rfind('/'))) {
    smallest = std::min(smallest, read(absl::StrCat(mount, path)));
  }
  return smallest;
}

}  // namespace internal

// CPUs' worth of time that the control groups (v2, or v1's cpu controller) leave this process;
// infinity when they set no limit. `root` is where /proc and /sys are found.
inline double CpuQuota(const std::string& root = "") {
  double smallest = std::numeric_limits<double>::infinity();
  std::ifstream groups(absl::StrCat(root, "/proc/self/cgroup"));
  std::string line;
  while (std::getline(groups, line)) {  // HIERARCHY:CONTROLLERS:PATH
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || !absl::StartsWith(fields[2], "/")) continue;
    if (fields[1].empty()) {
      smallest = std::min(
          smallest, internal::SmallestQuota(
                        absl::StrCat(root, "/sys/fs/cgroup"), fields[2], [](std::string path) {
                          const std::pair<std::string, std::string> max = absl::StrSplit(
                              internal::ReadFirstLine(path + "/cpu.max"), absl::MaxSplits(' ', 1));
                          return internal::QuotaOf(max.first, max.second);
                        }));
    }
    for (const absl::string_view controller : absl::StrSplit(fields[1], ',')) {
      if (controller != "cpu") continue;
      smallest = std::min(
          smallest, internal::SmallestQuota(
                        absl::StrCat(root, "/sys/fs/cgroup/cpu"), fields[2], [](std::string path) {
                          return internal::QuotaOf(
                              internal::ReadFirstLine(path + "/cpu.cfs_quota_us"),
                              internal::ReadFirstLine(path + "/cpu.cfs_period_us"));
                        }));
    }
  }
  return smallest;
}

// How many threads may compute at once: the CPUs, or whole CPUs of the quota if those are fewer. At
// least 1.
inline int UsableCpus(int num_cpus, double quota) {
  return quota >= num_cpus ? num_cpus : std::max(1, static_cast<int>(quota));
}
inline int UsableCpus() { return UsableCpus(static_cast<int>(AvailableCpus().size()), CpuQuota()); }

}  // namespace shoal::base
