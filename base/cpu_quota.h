#pragma once

#include <sched.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/control_group.h"

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

// CPUs' worth of time that the control groups leave this process; infinity when they set no limit.
// `root` is where /proc and /sys are found.
inline double CpuQuota(const std::string& root = "") {
  double smallest = std::numeric_limits<double>::infinity();
  for (const ControlGroup& group : ControlGroupsOf("cpu", root)) {
    std::string quota = group.Read("cpu.cfs_quota_us");
    std::string period = group.Read("cpu.cfs_period_us");
    if (group.is_v2) {
      const std::pair<std::string, std::string> max =
          absl::StrSplit(group.Read("cpu.max"), absl::MaxSplits(' ', 1));
      std::tie(quota, period) = max;
    }
    double used = 0, whole = 0;
    // "max", -1 or no such file: no limit.
    if (absl::SimpleAtod(quota, &used) && absl::SimpleAtod(period, &whole) && used > 0 &&
        whole > 0) {
      smallest = std::min(smallest, used / whole);
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
