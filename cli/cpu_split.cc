#include "cli/cpu_split.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"

namespace shoal::cli {
namespace {

constexpr int kMaxCpu = 4095;

}  // namespace

absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view text) {
  std::vector<int> cpus;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> range =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    const bool is_range = part.find('-') != absl::string_view::npos;
    if (!absl::SimpleAtoi(range.first, &first) ||
        !absl::SimpleAtoi(is_range ? range.second : range.first, &last) || first < 0 ||
        last < first || last > kMaxCpu) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", part, "\" is no CPU and no range of CPUs from 0 to ", kMaxCpu, ": try 0-3,8"));
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  std::sort(cpus.begin(), cpus.end());
  const auto twice = std::adjacent_find(cpus.begin(), cpus.end());
  if (twice != cpus.end()) {
    return absl::InvalidArgumentError(absl::StrCat("CPU ", *twice, " is named twice"));
  }
  return cpus;
}

CpuSplit SplitCpus(absl::Span<const int> available, int num_usable, bool chosen, int num_ranks,
                   int threads) {
  CHECK_GE(num_ranks, 1);
  CHECK(!available.empty());
  CHECK(num_usable >= 1 && num_usable <= static_cast<int>(available.size()));
  const int num_cpus = static_cast<int>(available.size());
  CpuSplit split;
  split.threads = threads > 0 ? threads : std::max(1, num_usable / num_ranks);
  split.cpus.resize(num_ranks);
  const int num_threads = num_ranks * split.threads;
  split.oversubscribed = num_threads > num_usable;
  const bool fills = num_ranks * (split.threads + 1) > num_cpus;
  if (num_threads > num_cpus || (!chosen && (split.oversubscribed || !fills))) return split;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto begin = available.begin() + rank * split.threads;
    split.cpus[rank].assign(begin, begin + split.threads);
  }
  return split;
}

}  // namespace shoal::cli
