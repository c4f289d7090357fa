#include "cli/bench_stats.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

std::vector<absl::Duration> Milliseconds(int first, int last) {
  std::vector<absl::Duration> values;
  for (int i = last; i >= first; --i) values.push_back(absl::Milliseconds(i));
  return values;
}

BenchSample Sample(int first_ms, int end_ms, uint32_t output_tokens) {
  BenchSample sample;
  sample.time_to_first_token = absl::Milliseconds(first_ms);
  sample.end_to_end = absl::Milliseconds(end_ms);
  sample.prompt_tokens = 10;
  sample.cached_tokens = 4;
  sample.output_tokens = output_tokens;
  sample.token_gaps.assign(output_tokens - 1, absl::Milliseconds(7));
  return sample;
}

BenchSample Failure(const char* code) {
  BenchSample sample = Sample(9999, 9999, 5);
  sample.error = code;
  return sample;
}

TEST(DescribeTest, TakesTheNearestRank) {
  const Distribution hundred = Describe(Milliseconds(1, 100));
  EXPECT_DOUBLE_EQ(hundred.mean, 50.5);
  EXPECT_DOUBLE_EQ(hundred.p50, 50);
  EXPECT_DOUBLE_EQ(hundred.p95, 95);
  EXPECT_DOUBLE_EQ(hundred.p99, 99);
  EXPECT_DOUBLE_EQ(hundred.max, 100);
  const Distribution three = Describe(Milliseconds(1, 3));
  EXPECT_DOUBLE_EQ(three.p50, 2);
  EXPECT_DOUBLE_EQ(three.p95, 3);
}

TEST(DescribeTest, OneValueIsEveryPercentileAndNoneIsZero) {
  EXPECT_DOUBLE_EQ(Describe(Milliseconds(5, 5)).p50, 5);
  EXPECT_DOUBLE_EQ(Describe(Milliseconds(5, 5)).p99, 5);
  EXPECT_DOUBLE_EQ(Describe({}).p99, 0);
}

TEST(BenchReportTest, CountsTokensOfRequestsThatSucceeded) {
  const BenchReport report =
      MakeReport({Sample(10, 100, 3), Sample(20, 200, 5), Failure("UNAVAILABLE")}, absl::Seconds(2),
                 absl::Milliseconds(100));
  EXPECT_EQ(report.num_succeeded, 2u);
  EXPECT_EQ(report.prompt_tokens, 20u);
  EXPECT_EQ(report.cached_tokens, 8u);
  EXPECT_EQ(report.output_tokens, 8u);
  EXPECT_DOUBLE_EQ(report.requests_per_s(), 1);
  EXPECT_DOUBLE_EQ(report.output_tokens_per_s(), 4);
  EXPECT_DOUBLE_EQ(report.computed_tokens_per_s(), 10);
  EXPECT_DOUBLE_EQ(report.time_to_first_token.max, 20);
  EXPECT_DOUBLE_EQ(report.end_to_end.max, 200);
  EXPECT_DOUBLE_EQ(report.token_gap.mean, 7);
  EXPECT_THAT(report.errors, testing::ElementsAre(testing::Pair("UNAVAILABLE", 1u)));
}

TEST(BenchReportTest, JsonHasWhatTheTableHas) {
  const BenchReport report = MakeReport({Sample(10, 100, 3), Failure("A"), Failure("B")},
                                        absl::Seconds(2), absl::Milliseconds(100));
  const auto json = nlohmann::json::parse(report.ToJson());
  EXPECT_EQ(json["succeeded"], 1);
  EXPECT_EQ(json["errors"]["A"], 1);
  EXPECT_EQ(json["errors"]["B"], 1);
  EXPECT_EQ(json["output_tokens"], 3);
  EXPECT_EQ(json["client_cpu_s"], 0.1);
  EXPECT_EQ(json["output_tokens_per_s"], 1.5);
  EXPECT_EQ(json["time_to_first_token_ms"]["p95"], 10);
  EXPECT_THAT(report.ToTable(), testing::HasSubstr("1 ok, 2 failed in 2.00 s"));
}

TEST(BenchReportTest, NoRequestsIsValidJsonWithoutDivisionByZero) {
  const auto json = nlohmann::json::parse(MakeReport({}, {}, {}).ToJson());
  EXPECT_EQ(json["requests_per_s"], 0);
}

}  // namespace
}  // namespace shoal::cli
