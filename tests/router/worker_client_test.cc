#include "router/worker_client.h"

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router/fake_rank.h"
#include "tests/router/test_model.h"

namespace shoal::router {
namespace {

using ::testing::HasSubstr;
namespace wire = worker::v1;

constexpr absl::Duration kTimeout = absl::Seconds(10);

class WorkerClientTest : public ::testing::Test {
 protected:
  ~WorkerClientTest() override {
    client_.CancelAll();
    while (client_.num_pending() > 0) loop_.RunFor(kTimeout);
  }

  template <typename T>
  T RunUntilSet(std::optional<T>* value) {
    while (!value->has_value()) loop_.RunFor(kTimeout);
    return **value;
  }
  // A `done` that fills `result`.
  template <typename T>
  static WorkerClient::Done<T> Into(std::optional<absl::StatusOr<T>>* result) {
    return [result](absl::StatusOr<T> value) { *result = std::move(value); };
  }

  WorkerClient::StreamCallbacks Callbacks() {
    return {
        .opened = [this] { is_open_ = true; },
        .reply =
            [this](const wire::ExecuteResponse& response) { steps_.push_back(response.step()); },
        .closed = [this](const absl::Status& status) { closed_ = status; }};
  }
  void Send(uint64_t step) {
    wire::ExecuteRequest request;
    request.mutable_plan()->set_step(step);
    client_.Send(SerializePlan(request));
  }

  const std::string address_ = FakeRank::NewAddress();
  FakeRank rank_{address_, {}};
  CompletionLoop loop_;
  WorkerClient client_{3, address_, "", &loop_};
  bool is_open_ = false;
  std::vector<uint64_t> steps_;
  std::optional<absl::Status> closed_;
};

TEST_F(WorkerClientTest, AsksForInfoAndLoadsWithProgress) {
  std::optional<absl::StatusOr<wire::GetWorkerInfoResponse>> info;
  client_.GetWorkerInfo(kTimeout, Into(&info));
  ASSERT_TRUE(RunUntilSet(&info).ok());
  EXPECT_EQ((*info)->pid(), 1234u);

  wire::LoadShardRequest request;
  request.set_rank(3);
  request.set_kv_cache_dtype("f32");
  std::vector<uint64_t> progress;
  std::optional<absl::StatusOr<wire::ShardLimits>> limits;
  client_.LoadShard(
      request, kTimeout,
      [&](const wire::LoadShardResponse& response) { progress.push_back(response.loaded_bytes()); },
      Into(&limits));
  ASSERT_TRUE(RunUntilSet(&limits).ok());
  EXPECT_EQ((*limits)->num_blocks(), 32u);
  EXPECT_THAT(progress, ::testing::ElementsAre(500, 1000));
  EXPECT_EQ(rank_.loaded().kv_cache_dtype(), "f32");
}

TEST_F(WorkerClientTest, PutsTheModelsDescriptionTogether) {
  std::optional<absl::StatusOr<wire::ModelDescription>> description;
  client_.GetModelDescription(kTimeout, Into(&description));
  ASSERT_TRUE(RunUntilSet(&description).ok());
  EXPECT_EQ((*description)->SerializeAsString(), DescribeTestModel().SerializeAsString());
}

TEST_F(WorkerClientTest, ErrorsNameTheRankAndKeepTheCode) {
  wire::JoinGroupRequest request;  // epoch 0 is never new
  std::optional<absl::StatusOr<wire::JoinGroupResponse>> joined;
  client_.JoinGroup(request, kTimeout, Into(&joined));
  const absl::Status status = RunUntilSet(&joined).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3 (unix-abstract:"));
}

TEST_F(WorkerClientTest, ADeadRankIsUnavailableAtOnceAndFoundWhenItIsBack) {
  rank_.Kill();
  std::optional<absl::StatusOr<wire::GetWorkerInfoResponse>> info;
  client_.GetWorkerInfo(kTimeout, Into(&info));
  EXPECT_EQ(RunUntilSet(&info).status().code(), absl::StatusCode::kUnavailable);
  rank_.Start();
  const absl::Time start = absl::Now();
  do {
    info.reset();
    client_.GetWorkerInfo(kTimeout, Into(&info));
  } while (!RunUntilSet(&info).ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST_F(WorkerClientTest, PlansSentBeforeTheStreamIsOpenArriveInOrder) {
  client_.OpenStream("test/1", Callbacks());
  for (uint64_t step = 1; step <= 5; ++step) Send(step);
  while (steps_.size() < 5) loop_.RunFor(kTimeout);
  EXPECT_TRUE(is_open_);
  EXPECT_THAT(steps_, ::testing::ElementsAre(1, 2, 3, 4, 5));
  EXPECT_FALSE(closed_.has_value());
}

TEST_F(WorkerClientTest, AKilledRankClosesItsStreamOnce) {
  client_.OpenStream("test/1", Callbacks());
  Send(1);
  while (steps_.empty()) loop_.RunFor(kTimeout);
  rank_.Kill();
  const absl::Status status = RunUntilSet(&closed_);
  EXPECT_FALSE(status.ok());
  Send(2);  // has nowhere to go
  EXPECT_EQ(client_.num_pending(), 0u);
}

TEST_F(WorkerClientTest, AClosedStreamIsSilent) {
  client_.OpenStream("test/1", Callbacks());
  Send(1);
  while (steps_.empty()) loop_.RunFor(kTimeout);
  client_.CloseStream();
  while (client_.num_pending() > 0) loop_.RunFor(kTimeout);
  EXPECT_FALSE(closed_.has_value());
}

TEST_F(WorkerClientTest, ANewStreamReplacesTheOld) {
  client_.OpenStream("test/1", Callbacks());
  Send(1);
  while (steps_.empty()) loop_.RunFor(kTimeout);
  client_.OpenStream("test/1", Callbacks());
  Send(2);
  while (steps_.size() < 2) loop_.RunFor(kTimeout);
  EXPECT_FALSE(closed_.has_value());
}

TEST_F(WorkerClientTest, CancelAllSilencesWhatPends) {
  bool was_called = false;
  rank_.HoldReplies();
  client_.OpenStream("test/1", Callbacks());
  Send(1);
  client_.GetWorkerInfo(kTimeout, [&](const auto&) { was_called = true; });
  client_.CancelAll();
  while (client_.num_pending() > 0) loop_.RunFor(kTimeout);
  EXPECT_FALSE(was_called);
  EXPECT_FALSE(closed_.has_value());
  rank_.ReleaseReplies();
}

TEST(CompletionLoopTest, AWakeEndsTheWaitHoweverManyWakers) {
  CompletionLoop loop;
  std::atomic<int> num_left{2000};
  std::vector<std::thread> wakers;
  for (int i = 0; i < 4; ++i) {
    wakers.emplace_back([&] {
      while (num_left.fetch_sub(1) > 0) loop.Wake();
    });
  }
  // A lost wake would hang here.
  while (num_left.load() > 0) loop.RunFor(absl::InfiniteDuration());
  for (std::thread& waker : wakers) waker.join();
  loop.Wake();
  loop.RunFor(absl::InfiniteDuration());
}

TEST(CompletionLoopTest, ReturnsAtTheTimeout) {
  CompletionLoop loop;
  const absl::Time start = absl::Now();
  loop.RunFor(absl::Milliseconds(20));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(19));
  loop.RunFor(absl::Seconds(-1));
}

}  // namespace
}  // namespace shoal::router
