#include "base/thread/span_recorder.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace shoal::base {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

// A loop that runs steps of two spans (names 0 and 1) until it is told to stop.
class Loop {
 public:
  explicit Loop(SpanRecorder* recorder)
      : thread_([this, recorder] {
          for (uint64_t step = 1; !stop_.load(); ++step) {
            recorder->BeginStep(step);
            recorder->Add(0, static_cast<int64_t>(step) * 10, static_cast<int64_t>(step) * 10 + 4);
            recorder->Add(1, static_cast<int64_t>(step) * 10 + 4,
                          static_cast<int64_t>(step) * 10 + 9);
            recorder->EndStep();
            std::this_thread::yield();
          }
        }) {}
  ~Loop() {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(SpanRecorderTest, GivesWholeConsecutiveSteps) {
  SpanRecorder recorder;
  const Loop loop(&recorder);
  for (int round = 0; round < 3; ++round) {
    const auto spans = recorder.Record(5, 100, kLong);
    ASSERT_TRUE(spans.ok()) << spans.status();
    ASSERT_EQ(spans->size(), 10u);
    for (size_t i = 0; i < spans->size(); ++i) {
      const Span& span = (*spans)[i];
      EXPECT_EQ(span.step, spans->front().step + i / 2);
      EXPECT_EQ(span.name, i % 2);
      EXPECT_EQ(span.begin_ns, static_cast<int64_t>(span.step) * 10 + (i % 2 == 0 ? 0 : 4));
    }
  }
}

TEST(SpanRecorderTest, KeepsNoMoreThanWasAskedFor) {
  SpanRecorder recorder;
  const Loop loop(&recorder);
  const auto spans = recorder.Record(5, 3, kLong);
  ASSERT_TRUE(spans.ok());
  EXPECT_EQ(spans->size(), 3u);
}

TEST(SpanRecorderTest, EndsAfterTheTimeoutWhenNothingRuns) {
  SpanRecorder recorder;
  const auto spans = recorder.Record(5, 10, absl::Milliseconds(1));
  ASSERT_TRUE(spans.ok());
  EXPECT_TRUE(spans->empty());
}

TEST(SpanRecorderTest, RecordsNothingWhenNobodyAsks) {
  SpanRecorder recorder;
  recorder.BeginStep(1);
  EXPECT_FALSE(recorder.is_recording());
  recorder.Add(0, 1, 2);
  recorder.EndStep();
  const auto spans = recorder.Record(1, 10, absl::Milliseconds(1));
  ASSERT_TRUE(spans.ok());
  EXPECT_TRUE(spans->empty());
}

TEST(SpanRecorderTest, RefusesASecondReaderAndReportsAStepThatHangs) {
  SpanRecorder recorder;
  absl::StatusOr<std::vector<Span>> first = absl::UnknownError("not run");
  std::thread reader([&] { first = recorder.Record(1, 10, absl::Milliseconds(500)); });
  while (!recorder.is_recording()) {
    recorder.BeginStep(7);  // until the reader has armed it
    std::this_thread::yield();
  }
  const auto second = recorder.Record(1, 10, absl::Milliseconds(1));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  reader.join();  // step 7 never ended
  EXPECT_EQ(first.status().code(), absl::StatusCode::kDeadlineExceeded);
  recorder.EndStep();
  EXPECT_TRUE(recorder.Record(1, 10, absl::Milliseconds(1)).ok());
}

}  // namespace
}  // namespace shoal::base
