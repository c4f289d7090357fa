#include "cli/trace_report.h"

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "shoal/v1/admin.pb.h"

namespace shoal::cli {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::Field;

// Names become indices; times are in microseconds.
void Add(v1::ProcessTrace* trace, uint64_t step, const std::string& name, int begin, int duration) {
  int index = 0;
  while (index < trace->span_names_size() && trace->span_names(index) != name) ++index;
  if (index == trace->span_names_size()) trace->add_span_names(name);
  v1::StepSpan* span = trace->add_spans();
  span->set_step(step);
  span->set_name(static_cast<uint32_t>(index));
  span->set_begin_ns(begin * 1000);
  span->set_duration_ns(duration * 1000);
}

v1::ProcessTrace ThreeSteps() {
  v1::ProcessTrace rank;
  rank.set_process("rank-0");
  rank.set_pid(10);
  rank.set_origin_unix_ns(5'000'000);
  for (const int step : {1, 2, 3}) {
    const int begin = 1000 * step;
    Add(&rank, step, "step", begin, 100 * step);
    Add(&rank, step, "layer 0 MatMul gate+up", begin, 10 * step);
    Add(&rank, step, "layer 12 MatMul gate+up", begin + 20, 20 * step);
    Add(&rank, step, "Embed", begin + 90, 10 * step);
  }
  return rank;
}

TEST(SummarizeTest, JoinsLayersAndTakesMediansOverSteps) {
  const std::vector<TraceLine> lines = Summarize(ThreeSteps());
  EXPECT_THAT(
      lines,
      ElementsAre(Field(&TraceLine::name, "step"), Field(&TraceLine::name, "MatMul gate+up"),
                  Field(&TraceLine::name, "Embed"), Field(&TraceLine::name, "between steps")));
  EXPECT_THAT(lines[0].median_us, DoubleEq(200));
  EXPECT_THAT(lines[0].share, DoubleEq(1));
  EXPECT_THAT(lines[1].calls, DoubleEq(2));
  EXPECT_THAT(lines[1].median_us, DoubleEq(60));
  EXPECT_THAT(lines[1].share, DoubleEq(0.3));
  EXPECT_THAT(lines[3].median_us, DoubleEq(900)) << "900 after the first, 800 after the second";
}

TEST(SummarizeTest, WithoutStepsSharesAreOfAllSpans) {
  v1::ProcessTrace router;
  Add(&router, 1, "plan", 0, 1);
  Add(&router, 1, "in flight", 1, 3);
  const std::vector<TraceLine> lines = Summarize(router);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].name, "in flight");
  EXPECT_THAT(lines[0].share, DoubleEq(0.75));
  EXPECT_TRUE(Summarize(v1::ProcessTrace()).empty());
}

TEST(ChromeTraceTest, IsOnOneAxisAndEventsOfAThreadNest) {
  v1::TraceStepsResponse traces;
  v1::ProcessTrace* router = traces.add_processes();
  router->set_process("router");
  router->set_pid(9);
  router->set_origin_unix_ns(4'000'000);
  Add(router, 1, "in flight", 0, 500);
  Add(router, 2, "in flight", 300, 500);  // while the first is
  Add(router, 1, "commit", 500, 20);
  Add(router, 1, "deliver", 510, 100);  // on a thread of its own
  *traces.add_processes() = ThreeSteps();
  const nlohmann::json trace = nlohmann::json::parse(ToChromeTrace(traces));
  std::map<std::pair<int, int>, double> free_at;  // of a thread's outermost events
  int num_events = 0;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++num_events;
    const std::string name = event["name"];
    if (absl::StrContains(name, "MatMul") || name == "Embed") continue;  // inside a step
    double& free = free_at[{event["pid"], event["tid"]}];
    EXPECT_GE(event["ts"].get<double>(), free) << event;
    free = event["ts"].get<double>() + event["dur"].get<double>();
  }
  EXPECT_EQ(num_events, 4 + 12);
  EXPECT_EQ(free_at.size(), 5u) << "two plans under way, loop and delivery, and a rank";
  EXPECT_EQ(trace["traceEvents"][2]["ts"], 0);
  EXPECT_THAT((free_at[{10, 1}]), DoubleEq(1000 + 3000 + 300)) << "1 ms later, by its origin";
}

TEST(ChromeTraceTest, CountsTheBatchWhereItIsKnown) {
  v1::TraceStepsResponse traces;
  v1::ProcessTrace* router = traces.add_processes();
  for (const uint32_t step : {1, 2, 3}) {
    Add(router, step, "plan", static_cast<int>(step) * 10, 1);
    Add(router, step, "in flight", static_cast<int>(step) * 10 + 1, 5);
    v1::StepSpan* span = router->mutable_spans(router->spans_size() - 1);
    span->set_sequences(step);
    span->set_tokens(100 * step);
  }
  router->mutable_spans(5)->set_tokens(7);
  EXPECT_EQ(MedianBatch(*router).num_sequences, 2u);
  EXPECT_EQ(MedianBatch(*router).num_tokens, 100u) << "of 100, 200 and 7";
  EXPECT_EQ(MedianBatch(v1::ProcessTrace()).num_sequences, 0u);
  const nlohmann::json trace = nlohmann::json::parse(ToChromeTrace(traces));
  std::vector<nlohmann::json> counts;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "C") counts.push_back(event);
  }
  ASSERT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts[1]["args"], nlohmann::json({{"sequences", 2}, {"tokens", 200}}));
  EXPECT_EQ(counts[1]["ts"], 21);
}

}  // namespace
}  // namespace shoal::cli
