#include "cli/bench_stats.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/output.h"

namespace shoal::cli {
namespace {

// REQUIRES: `sorted` is not empty, 0 < percent <= 100.
double PercentileMs(const std::vector<absl::Duration>& sorted, double percent) {
  const double rank = std::ceil(percent / 100 * static_cast<double>(sorted.size()));
  const size_t index = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  return absl::ToDoubleMilliseconds(sorted[std::min(index, sorted.size() - 1)]);
}

std::string DistributionJson(const Distribution& d) {
  return absl::StrFormat(R"({"mean": %.3f, "p50": %.3f, "p95": %.3f, "p99": %.3f, "max": %.3f})",
                         d.mean, d.p50, d.p95, d.p99, d.max);
}

}  // namespace

Distribution Describe(std::vector<absl::Duration> values) {
  Distribution result;
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  absl::Duration sum;
  for (const absl::Duration value : values) sum += value;
  result.mean = absl::ToDoubleMilliseconds(sum) / static_cast<double>(values.size());
  result.p50 = PercentileMs(values, 50);
  result.p95 = PercentileMs(values, 95);
  result.p99 = PercentileMs(values, 99);
  result.max = absl::ToDoubleMilliseconds(values.back());
  return result;
}

BenchReport MakeReport(const std::vector<BenchSample>& samples, absl::Duration wall,
                       absl::Duration client_cpu) {
  BenchReport report;
  report.wall_s = absl::ToDoubleSeconds(wall);
  report.client_cpu_s = absl::ToDoubleSeconds(client_cpu);
  std::vector<absl::Duration> first, gaps, whole;
  for (const BenchSample& sample : samples) {
    if (!sample.error.empty()) {
      ++report.errors[sample.error];
      continue;
    }
    ++report.num_succeeded;
    report.prompt_tokens += sample.prompt_tokens;
    report.cached_tokens += sample.cached_tokens;
    report.output_tokens += sample.output_tokens;
    if (sample.output_tokens > 0) first.push_back(sample.time_to_first_token);
    gaps.insert(gaps.end(), sample.token_gaps.begin(), sample.token_gaps.end());
    whole.push_back(sample.end_to_end);
  }
  report.time_to_first_token = Describe(std::move(first));
  report.token_gap = Describe(std::move(gaps));
  report.end_to_end = Describe(std::move(whole));
  return report;
}

std::string BenchReport::ToTable() const {
  uint64_t num_failed = 0;
  for (const auto& [code, count] : errors) num_failed += count;
  Table totals({"TOTAL", ""});
  totals.AddRow({"requests",
                 absl::StrFormat("%d ok, %d failed in %.2f s", num_succeeded, num_failed, wall_s)});
  for (const auto& [code, count] : errors) totals.AddRow({"  " + code, absl::StrCat(count)});
  totals.AddRow({"requests/s", absl::StrFormat("%.2f", requests_per_s())});
  totals.AddRow({"output tokens/s", absl::StrFormat("%.1f", output_tokens_per_s())});
  totals.AddRow({"computed tokens/s",
                 absl::StrFormat("%.1f (prompts too, cache hits not)", computed_tokens_per_s())});
  totals.AddRow({"tokens", absl::StrFormat("%d prompt, %d of them cached, %d output", prompt_tokens,
                                           cached_tokens, output_tokens)});
  totals.AddRow({"client CPU", absl::StrFormat("%.2f s", client_cpu_s)});
  totals.AddRow({"seed", absl::StrCat(seed)});
  Table times({"MILLISECONDS", "MEAN", "P50", "P95", "P99", "MAX"});
  const auto add = [&](const std::string& name, const Distribution& d) {
    times.AddRow({name, absl::StrFormat("%.2f", d.mean), absl::StrFormat("%.2f", d.p50),
                  absl::StrFormat("%.2f", d.p95), absl::StrFormat("%.2f", d.p99),
                  absl::StrFormat("%.2f", d.max)});
  };
  add("time to first token", time_to_first_token);
  add("between tokens", token_gap);
  add("end to end", end_to_end);
  return absl::StrCat(totals.ToString(), "\n", times.ToString());
}

std::string BenchReport::ToJson() const {
  const std::string codes = absl::StrJoin(errors, ", ", [](std::string* out, const auto& error) {
    absl::StrAppend(out, "\"", error.first, "\": ", error.second);  // names of codes: no escapes
  });
  return absl::StrFormat(
      "{\n"
      "  \"seed\": %d,\n  \"succeeded\": %d,\n  \"errors\": {%s},\n  \"wall_s\": %.6f,\n"
      "  \"client_cpu_s\": %.6f,\n  \"prompt_tokens\": %d,\n  \"cached_tokens\": %d,\n"
      "  \"output_tokens\": %d,\n  \"requests_per_s\": %.3f,\n  \"output_tokens_per_s\": %.3f,\n"
      "  \"computed_tokens_per_s\": %.3f,\n  \"time_to_first_token_ms\": %s,\n"
      "  \"token_gap_ms\": %s,\n  \"end_to_end_ms\": %s\n}\n",
      seed, num_succeeded, codes, wall_s, client_cpu_s, prompt_tokens, cached_tokens, output_tokens,
      requests_per_s(), output_tokens_per_s(), computed_tokens_per_s(),
      DistributionJson(time_to_first_token), DistributionJson(token_gap),
      DistributionJson(end_to_end));
}

}  // namespace shoal::cli
