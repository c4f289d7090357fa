#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

// The control groups that this process is in: what a container, a pod or a systemd slice may take.

namespace shoal::base {

struct ControlGroup {
  bool is_v2 = false;
  std::string path;  // its folder

  // The first line of one of its files; "" if there is none.
  std::string Read(absl::string_view file) const {
    std::ifstream stream(absl::StrCat(path, "/", file));
    std::string line;
    std::getline(stream, line);
    return line;
  }
};

// The groups whose limits bind this process for one of the controllers of version 1 ("cpu",
// "memory"), whichever version the machine has: its own and all above it. In a container the path
// is the host's and only the hierarchy's root is there. `root` is where /proc and /sys are found.
inline std::vector<ControlGroup> ControlGroupsOf(absl::string_view controller,
                                                 absl::string_view root = "") {
  std::vector<ControlGroup> groups;
  std::ifstream stream(absl::StrCat(root, "/proc/self/cgroup"));
  std::string line;
  while (std::getline(stream, line)) {  // HIERARCHY:CONTROLLERS:PATH
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || !absl::StartsWith(fields[2], "/")) continue;
    bool is_bound = false;
    for (const absl::string_view name : absl::StrSplit(fields[1], ',')) {
      is_bound = is_bound || name == controller;
    }
    const bool is_v2 = fields[1].empty();
    if (!is_v2 && !is_bound) continue;
    const std::string mount = is_v2 ? absl::StrCat(root, "/sys/fs/cgroup")
                                    : absl::StrCat(root, "/sys/fs/cgroup/", controller);
    groups.push_back({is_v2, mount});
    for (std::string path = fields[2]; path.size() > 1; path.resize(path.rfind('/'))) {
      groups.push_back({is_v2, mount + path});
    }
  }
  return groups;
}

}  // namespace shoal::base
