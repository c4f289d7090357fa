#include "cli/trace_report.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "shoal/v1/admin.pb.h"

namespace shoal::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kStep[] = "step";
constexpr char kInFlight[] = "in flight";
constexpr char kDeliver[] = "deliver";
// Threads of the trace.
constexpr int kMainThread = 1;
constexpr int kDeliveryThread = 2;
constexpr int kFlightThread = 3;  // and one more for every other plan under way
constexpr uint64_t kFlights = 8;

template <typename T>
T Median(std::vector<T> values) {
  if (values.empty()) return T{};
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// "layer 3 MatMul" -> "MatMul".
std::string KindOf(const std::string& name) {
  const std::vector<std::string> words = absl::StrSplit(name, absl::MaxSplits(' ', 2));
  int layer = 0;
  const bool has_layer =
      words.size() == 3 && words[0] == "layer" && absl::SimpleAtoi(words[1], &layer);
  return has_layer ? words[2] : name;
}

std::string NameOf(const v1::ProcessTrace& trace, const v1::StepSpan& span) {
  return span.name() < static_cast<uint32_t>(trace.span_names_size())
             ? trace.span_names(static_cast<int>(span.name()))
             : absl::StrCat("span ", span.name());
}

Json Named(absl::string_view what, uint32_t pid, int tid, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
}

int ThreadOf(const std::string& span, uint64_t step) {
  if (span == kInFlight) return kFlightThread + static_cast<int>(step % kFlights);
  return span == kDeliver ? kDeliveryThread : kMainThread;
}

std::string ThreadName(int thread) {
  if (thread == kMainThread) return "loop";
  return thread == kDeliveryThread ? "delivery" : "plans with the ranks";
}

}  // namespace

std::string ToChromeTrace(const v1::TraceStepsResponse& traces) {
  int64_t start = INT64_MAX;
  for (const v1::ProcessTrace& trace : traces.processes()) {
    if (trace.spans_size() > 0) start = std::min<int64_t>(start, trace.origin_unix_ns());
  }
  Json events = Json::array();
  for (const v1::ProcessTrace& trace : traces.processes()) {
    events.push_back(Named("process_name", trace.pid(), kMainThread, trace.process()));
    std::set<int> threads;
    for (const v1::StepSpan& span : trace.spans()) {
      const std::string name = NameOf(trace, span);
      const int tid = ThreadOf(name, span.step());
      if (threads.insert(tid).second) {
        events.push_back(Named("thread_name", trace.pid(), tid, ThreadName(tid)));
      }
      const double begin_ns = static_cast<double>(trace.origin_unix_ns() - start + span.begin_ns());
      events.push_back({{"ph", "X"},
                        {"name", name},
                        {"pid", trace.pid()},
                        {"tid", tid},
                        {"ts", begin_ns / 1000},
                        {"dur", static_cast<double>(span.duration_ns()) / 1000},
                        {"args", {{"step", span.step()}}}});
      if (span.sequences() == 0) continue;
      events.push_back({{"ph", "C"},
                        {"name", "batch"},
                        {"pid", trace.pid()},
                        {"ts", begin_ns / 1000},
                        {"args", {{"sequences", span.sequences()}, {"tokens", span.tokens()}}}});
    }
  }
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump() + "\n";
}

TracedBatch MedianBatch(const v1::ProcessTrace& trace) {
  std::vector<uint32_t> sequences;
  std::vector<uint32_t> tokens;
  for (const v1::StepSpan& span : trace.spans()) {
    if (span.sequences() == 0) continue;
    sequences.push_back(span.sequences());
    tokens.push_back(span.tokens());
  }
  return {.num_sequences = Median(std::move(sequences)), .num_tokens = Median(std::move(tokens))};
}

std::vector<TraceLine> Summarize(const v1::ProcessTrace& trace) {
  std::map<std::string, std::map<uint64_t, double>> us;  // [kind][step]
  std::map<std::string, uint64_t> calls;
  std::vector<double> gaps;
  double last_end_us = -1;
  for (const v1::StepSpan& span : trace.spans()) {
    const std::string kind = KindOf(NameOf(trace, span));
    const double duration_us = static_cast<double>(span.duration_ns()) / 1000;
    us[kind][span.step()] += duration_us;
    ++calls[kind];
    if (kind != kStep) continue;
    const double begin_us = static_cast<double>(span.begin_ns()) / 1000;
    if (last_end_us >= 0) gaps.push_back(begin_us - last_end_us);
    last_end_us = begin_us + duration_us;
  }
  const auto sum = [](const std::map<uint64_t, double>& steps) {
    return std::accumulate(steps.begin(), steps.end(), 0.0,
                           [](double total, const auto& step) { return total + step.second; });
  };
  const bool has_steps = us.count(kStep) > 0;
  double whole = 0;
  for (const auto& [kind, steps] : us) {
    if (!has_steps || kind == kStep) whole += sum(steps);
  }
  std::vector<TraceLine> lines;
  for (const auto& [kind, steps] : us) {
    std::vector<double> values;
    for (const auto& [step, value] : steps) values.push_back(value);
    lines.push_back({kind, static_cast<double>(calls[kind]) / static_cast<double>(steps.size()),
                     Median(std::move(values)), whole > 0 ? sum(steps) / whole : 0});
  }
  std::sort(lines.begin(), lines.end(), [](const TraceLine& a, const TraceLine& b) {
    if ((a.name == kStep) != (b.name == kStep)) return a.name == kStep;
    return a.share > b.share;
  });
  if (!gaps.empty()) lines.push_back({"between steps", 1, Median(std::move(gaps)), 0});
  return lines;
}

}  // namespace shoal::cli
