#include "router/step_tracer.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "shoal/v1/admin.pb.h"
#include "shoal/worker/v1/worker.grpc.pb.h"
#include "tests/router/fake_rank.h"

namespace shoal::router {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(10);
constexpr int64_t kOriginNs = 1'000'000'000'000;  // of a rank's trace, by the router's clock

// What a trace's `done` was told.
class Outcome {
 public:
  TraceDone Sink() {
    return [this](const absl::Status& status, v1::TraceStepsResponse* response) {
      base::MutexLock lock(&mutex_);
      status_ = status;
      if (response != nullptr) response_.Swap(response);
      changed_.SignalAll();
    };
  }
  absl::Status Wait() {
    base::MutexLock lock(&mutex_);
    while (!status_.has_value()) changed_.Wait(&mutex_);
    return *status_;
  }
  bool is_there() {
    base::MutexLock lock(&mutex_);
    return status_.has_value();
  }
  // REQUIRES: Wait has returned.
  const v1::TraceStepsResponse& response() ABSL_NO_THREAD_SAFETY_ANALYSIS { return response_; }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
  v1::TraceStepsResponse response_ ABSL_GUARDED_BY(mutex_);
};

// Runs steps, one after the other, while it lives. Delivers those that are recorded, if it is to,
// and things of other steps beside them.
class Steps {
 public:
  explicit Steps(base::SpanRecorder* recorder, base::SpanRecorder* delivery = nullptr)
      : thread_([this, recorder, delivery] {
          for (uint64_t step = 1; !stop_.load(); ++step) {
            const auto begin_ns = static_cast<int64_t>(step) * 100;
            bool is_recorded = false;
            {
              const base::RecordedStep recorded(recorder, step);
              is_recorded = recorder->is_recording();
              recorder->Add(StepTracer::kCommit, begin_ns + 50, begin_ns + 60);
              recorder->Add(StepTracer::kInFlight, begin_ns, begin_ns + 50, {3, 40});
            }
            // Not of all steps: without a recorder's pauses they would fill it before it is asked.
            for (const uint64_t delivered : {uint64_t{0}, step, step + kOther}) {
              if (delivery == nullptr || !is_recorded) break;
              const base::RecordedStep recorded(delivery, delivered);
              delivery->Add(0, begin_ns + 70, begin_ns + 90);
            }
            std::this_thread::yield();
          }
        }) {}
  ~Steps() {
    stop_.store(true);
    thread_.join();
  }

 private:
  static constexpr uint64_t kOther = 1'000'000;  // steps away

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Answers a Trace when it is told to, or with CANCELLED when nobody waits for it.
class TracedRank final : public worker::v1::WorkerService::Service {
 public:
  TracedRank() : address_(FakeRank::NewAddress()) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~TracedRank() override { server_->Shutdown(std::chrono::system_clock::now()); }

  const std::string& address() const { return address_; }
  void Answer(const grpc::Status& status) {
    base::MutexLock lock(&mutex_);
    status_ = status;
  }
  // Its clock, for Inspect: as much ahead of this one's.
  void SetAhead(absl::Duration ahead) { ahead_ns_ = absl::ToInt64Nanoseconds(ahead); }

  grpc::Status Trace(grpc::ServerContext* context, const worker::v1::TraceRequest* request,
                     worker::v1::TraceResponse* response) override {
    base::MutexLock lock(&mutex_);
    while (!status_.has_value()) {
      if (context->IsCancelled()) return grpc::Status::CANCELLED;
      changed_.WaitFor(&mutex_, absl::Milliseconds(1));
    }
    response->mutable_trace()->set_process("rank");
    response->mutable_trace()->set_origin_unix_ns(kOriginNs + ahead_ns_);
    response->mutable_trace()->add_spans()->set_step(request->steps());
    return *status_;
  }
  grpc::Status Inspect(grpc::ServerContext*, const worker::v1::InspectRequest*,
                       worker::v1::InspectResponse* response) override {
    response->set_unix_ns(base::UnixNanos() + ahead_ns_);
    return grpc::Status::OK;
  }

 private:
  const std::string address_;
  std::atomic<int64_t> ahead_ns_ = 0;
  base::Mutex mutex_;
  base::CondVar changed_;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

TEST(StepTracerTest, GathersTheRouterFirstAndThenTheRanks) {
  base::SpanRecorder recorder;
  base::SpanRecorder delivery;
  TracedRank rank;
  rank.Answer(grpc::Status::OK);
  StepTracer tracer({rank.address()}, "", &recorder, &delivery);
  const Steps steps(&recorder);
  Outcome outcome;
  EXPECT_NE(tracer.Start(7, kLong, outcome.Sink()), 0u);
  ASSERT_EQ(outcome.Wait(), absl::OkStatus());
  ASSERT_EQ(outcome.response().processes_size(), 2);
  const v1::ProcessTrace& router = outcome.response().processes(0);
  EXPECT_EQ(router.process(), "router");
  ASSERT_EQ(router.spans_size(), 14);
  EXPECT_EQ(router.spans(0).name(), static_cast<uint32_t>(StepTracer::kInFlight)) << "by begin";
  EXPECT_EQ(router.spans(0).sequences(), 3u);
  EXPECT_EQ(router.spans(0).tokens(), 40u);
  EXPECT_EQ(router.spans(1).begin_ns(), 50);
  EXPECT_EQ(router.spans(1).duration_ns(), 10);
  EXPECT_EQ(router.spans(13).step(), router.spans(0).step() + 6);
  EXPECT_EQ(outcome.response().processes(1).process(), "rank");
  EXPECT_EQ(outcome.response().processes(1).spans(0).step(), 7u);
  EXPECT_EQ(outcome.response().processes(1).origin_unix_ns(), kOriginNs);
}

TEST(StepTracerTest, HasTheDeliveriesOfItsOwnStepsAlone) {
  base::SpanRecorder recorder;
  base::SpanRecorder delivery;
  StepTracer tracer({}, "", &recorder, &delivery);
  const Steps steps(&recorder, &delivery);
  Outcome outcome;
  tracer.Start(7, kLong, outcome.Sink());
  ASSERT_EQ(outcome.Wait(), absl::OkStatus());
  const v1::ProcessTrace& router = outcome.response().processes(0);
  std::set<uint64_t> with_commit;
  std::set<uint64_t> with_delivery;
  for (const v1::StepSpan& span : router.spans()) {
    const std::string& name = router.span_names(static_cast<int>(span.name()));
    if (name == "commit") with_commit.insert(span.step());
    if (name == "deliver") with_delivery.insert(span.step());
  }
  EXPECT_EQ(with_commit.size(), 7u);
  EXPECT_GE(with_delivery.size(), 6u) << "all but the last, which comes after its commit";
  EXPECT_TRUE(std::includes(with_commit.begin(), with_commit.end(), with_delivery.begin(),
                            with_delivery.end()));
}

TEST(StepTracerTest, RanksWithAnotherClockAreShiftedToTheRouters) {
  base::SpanRecorder recorder;
  base::SpanRecorder delivery;
  const Steps steps(&recorder);
  TracedRank rank;
  rank.Answer(grpc::Status::OK);
  for (const absl::Duration ahead : {absl::Hours(1), -absl::Hours(1)}) {
    rank.SetAhead(ahead);
    StepTracer tracer({rank.address()}, "", &recorder, &delivery);
    Outcome outcome;
    tracer.Start(1, kLong, outcome.Sink());
    ASSERT_EQ(outcome.Wait(), absl::OkStatus());
    const int64_t origin_ns = outcome.response().processes(1).origin_unix_ns();
    EXPECT_NEAR(static_cast<double>(origin_ns - kOriginNs), 0, 1e9) << "of an hour";
    EXPECT_NE(origin_ns, kOriginNs + absl::ToInt64Nanoseconds(ahead));
  }
}

TEST(StepTracerTest, AnAbandonedTraceEndsEvenBeforeItHasBegun) {
  base::SpanRecorder recorder;  // without a loop: nothing else ends it
  base::SpanRecorder delivery;
  StepTracer tracer({}, "", &recorder, &delivery);
  for (int i = 0; i < 20; ++i) {
    Outcome outcome;
    tracer.Abandon(tracer.Start(5, kLong, outcome.Sink()));
    EXPECT_EQ(outcome.Wait(), absl::OkStatus());
  }
}

TEST(StepTracerTest, WhoHearsOfAnEndMayAskForTheNext) {
  base::SpanRecorder recorder;
  base::SpanRecorder delivery;
  StepTracer tracer({}, "", &recorder, &delivery);
  const Steps steps(&recorder);
  Outcome next;
  std::thread asker;
  Outcome outcome;
  tracer.Start(1, kLong, [&](const absl::Status& status, v1::TraceStepsResponse* response) {
    // While `done` runs the next one begins and ends.
    asker = std::thread([&] { tracer.Start(1, kLong, next.Sink()); });
    EXPECT_EQ(next.Wait(), absl::OkStatus());
    outcome.Sink()(status, response);
  });
  EXPECT_EQ(outcome.Wait(), absl::OkStatus());
  asker.join();
}

TEST(StepTracerTest, RefusesASecondWhileOneRuns) {
  base::SpanRecorder recorder;
  base::SpanRecorder delivery;
  TracedRank rank;
  StepTracer tracer({rank.address()}, "", &recorder, &delivery);
  Outcome first;
  const uint64_t id = tracer.Start(5, kLong, first.Sink());
  Outcome second;
  EXPECT_EQ(tracer.Start(5, kLong, second.Sink()), 0u);
  EXPECT_EQ(second.Wait().code(), absl::StatusCode::kFailedPrecondition);
  tracer.Abandon(id + 1);  // of no effect
  EXPECT_FALSE(first.is_there());
  tracer.Abandon(id);
  EXPECT_EQ(first.Wait().code(), absl::StatusCode::kCancelled);
}

TEST(StepTracerTest, ARankThatFailsEndsItAndIsNamed) {
  base::SpanRecorder recorder;
  base::SpanRecorder delivery;
  TracedRank patient;  // waits until it is cancelled
  TracedRank failing;
  failing.Answer(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "no shard is loaded"));
  StepTracer tracer({patient.address(), failing.address()}, "", &recorder, &delivery);
  Outcome outcome;
  tracer.Start(5, kLong, outcome.Sink());
  EXPECT_EQ(outcome.Wait().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(outcome.Wait().message(), HasSubstr("rank 1"));
  EXPECT_THAT(outcome.Wait().message(), HasSubstr("no shard is loaded"));
}

TEST(StepTracerTest, ARankThatIsNotThereEndsIt) {
  base::SpanRecorder recorder;
  base::SpanRecorder delivery;
  StepTracer tracer({FakeRank::NewAddress()}, "", &recorder, &delivery);
  Outcome outcome;
  tracer.Start(5, kLong, outcome.Sink());
  EXPECT_EQ(outcome.Wait().code(), absl::StatusCode::kUnavailable);
}

TEST(StepTracerTest, StopEndsWhatRunsAndRefusesWhatComes) {
  base::SpanRecorder recorder;
  base::SpanRecorder delivery;
  TracedRank rank;
  StepTracer tracer({rank.address()}, "", &recorder, &delivery);
  Outcome running;
  tracer.Start(5, kLong, running.Sink());
  tracer.Stop();
  EXPECT_TRUE(running.is_there());
  Outcome late;
  EXPECT_EQ(tracer.Start(5, kLong, late.Sink()), 0u);
  EXPECT_EQ(late.Wait().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace shoal::router
