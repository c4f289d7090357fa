#include "router/work_lanes.h"

#include <sys/resource.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/rpc_status.h"

namespace shoal::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

int NiceOfThisThread() { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); }

// A queue whose thread is held by its first work until Release.
class WorkQueueTest : public ::testing::Test {
 protected:
  void Hold(WorkQueue* queue, size_t bytes) {
    const auto started = std::make_shared<std::promise<void>>();  // set_value may outlast the wait
    ASSERT_TRUE(queue
                    ->Submit(bytes,
                             [this, started](const absl::Status&) {
                               started->set_value();
                               released_.get_future().wait();
                             })
                    .ok());
    started->get_future().wait();
  }
  void Release() { released_.set_value(); }
  WorkQueue::Work Note(int number) {
    return [this, number](const absl::Status& turn) {
      numbers_.push_back(number);
      codes_.push_back(turn.code());
    };
  }

  std::promise<void> released_;
  std::vector<int> numbers_;             // written by the queue's thread, read once it has stopped
  std::vector<absl::StatusCode> codes_;  // likewise
};

TEST_F(WorkQueueTest, WorksInOrderBelowTheOthersPriority) {
  std::promise<int> nice;  // before the queue, whose thread may be in set_value still
  std::promise<void> last;
  WorkQueue queue({.nice = 7});
  ASSERT_TRUE(
      queue.Submit(1, [&](const absl::Status&) { nice.set_value(NiceOfThisThread()); }).ok());
  EXPECT_EQ(nice.get_future().get(), 7);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue.Submit(1, Note(i)).ok());
  ASSERT_TRUE(queue.Submit(1, [&](const absl::Status&) { last.set_value(); }).ok());
  last.get_future().wait();
  queue.Stop();
  EXPECT_THAT(numbers_, ElementsAre(0, 1, 2));
}

TEST_F(WorkQueueTest, RefusesBytesBeyondTheLimitThoseOfTheRunningWorkIncluded) {
  WorkQueue queue({.max_bytes = 100});
  Hold(&queue, 60);
  EXPECT_TRUE(queue.Submit(40, Note(1)).ok());
  const absl::Status refused = queue.Submit(1, Note(2));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("100 bytes"));
  EXPECT_EQ(RetryAfter(refused), absl::Seconds(1));
  Release();
  queue.Stop();
}

TEST_F(WorkQueueTest, RefusesMoreThanItsCount) {
  WorkQueue queue({.max_waiting = 2});
  Hold(&queue, 1);
  EXPECT_TRUE(queue.Submit(1, Note(1)).ok());
  EXPECT_TRUE(queue.Submit(1, Note(2)).ok());
  EXPECT_EQ(queue.Submit(1, Note(3)).code(), absl::StatusCode::kResourceExhausted);
  Release();
  queue.Stop();
}

TEST_F(WorkQueueTest, DoneWorkMakesRoom) {
  std::promise<void> done[10];
  WorkQueue queue({.max_bytes = 100});
  for (int i = 0; i < 10; ++i) {
    // The bytes are free a moment after the work is done.
    while (!queue.Submit(100, [&, i](const absl::Status&) { done[i].set_value(); }).ok()) {
      std::this_thread::yield();
    }
    done[i].get_future().wait();
  }
}

TEST_F(WorkQueueTest, StoppingTellsWhatWaitsAndRefusesWhatComes) {
  WorkQueue queue({});
  Hold(&queue, 1);
  ASSERT_TRUE(queue.Submit(1, Note(1)).ok());
  std::thread stopper([&] { queue.Stop(); });
  while (!absl::IsUnavailable(queue.Submit(0, [](const absl::Status&) {}))) {
    std::this_thread::yield();
  }
  EXPECT_EQ(queue.Submit(0, Note(2)).code(), absl::StatusCode::kUnavailable);
  Release();
  stopper.join();
  EXPECT_THAT(numbers_, ElementsAre(1));
  EXPECT_THAT(codes_, ElementsAre(absl::StatusCode::kUnavailable));
}

TEST(WorkLanesTest, SmallWorkIsDoneAtOnceAndLargeWorkHoldsUpNobodyElse) {
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::promise<std::thread::id> large;
  std::promise<std::thread::id> medium;
  WorkLanes lanes({});
  ASSERT_TRUE(lanes
                  .Submit(WorkLanes::kMaxMediumBytes + 1,
                          [&](const absl::Status&) {
                            large.set_value(std::this_thread::get_id());
                            released.wait();
                          })
                  .ok());
  ASSERT_TRUE(
      lanes
          .Submit(WorkLanes::kMaxMediumBytes,
                  [&](const absl::Status&) { medium.set_value(std::this_thread::get_id()); })
          .ok());
  const std::thread::id medium_id = medium.get_future().get();
  EXPECT_NE(medium_id, large.get_future().get());
  EXPECT_NE(medium_id, std::this_thread::get_id());
  std::thread::id small_id;
  ASSERT_TRUE(lanes
                  .Submit(WorkLanes::kMaxInlineBytes,
                          [&](const absl::Status&) { small_id = std::this_thread::get_id(); })
                  .ok());
  EXPECT_EQ(small_id, std::this_thread::get_id());
  release.set_value();
}

}  // namespace
}  // namespace shoal::router
