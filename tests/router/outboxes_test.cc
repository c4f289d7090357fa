#include "router/outboxes.h"

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/thread/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(1000);

// Notes which calls were ended, in order.
class OutboxesTest : public ::testing::Test {
 protected:
  Outboxes::EndCall Note(int call) {
    return [this, call](const absl::Status& why) {
      base::MutexLock lock(&mutex_);
      calls_.push_back(call);
      statuses_.push_back(why);
      changed_.SignalAll();
    };
  }
  std::vector<int> WaitForEnds(size_t count) {
    base::MutexLock lock(&mutex_);
    while (calls_.size() < count) changed_.Wait(&mutex_);
    return calls_;
  }
  absl::Status status(size_t index) {
    base::MutexLock lock(&mutex_);
    return statuses_[index];
  }
  size_t num_ended() {
    base::MutexLock lock(&mutex_);
    return calls_.size();
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<int> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> statuses_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(OutboxesTest, CountsWhatWaitsAndWhatIsWritten) {
  Outboxes outboxes({});
  auto one = outboxes.Open(Note(1));
  auto two = outboxes.Open(Note(2));
  one->SetPending(10);
  two->BeginWrite(5);
  EXPECT_EQ(outboxes.num_bytes(), 15u);
  one->SetPending(3);
  two->EndWrite();
  EXPECT_EQ(outboxes.num_bytes(), 3u);
  one.reset();
  EXPECT_EQ(outboxes.num_bytes(), 0u);
}

TEST_F(OutboxesTest, TheLargestEndFirstUntilTheOthersFit) {
  Outboxes outboxes({.max_bytes = 100, .max_write_time = kLong});
  const auto small = outboxes.Open(Note(1));
  const auto large = outboxes.Open(Note(2));
  const auto middle = outboxes.Open(Note(3));
  small->SetPending(20);
  large->BeginWrite(30);
  large->SetPending(20);
  middle->SetPending(30);
  EXPECT_EQ(num_ended(), 0u) << "100 bytes are allowed";
  small->SetPending(21);
  EXPECT_THAT(WaitForEnds(1), ElementsAre(2));
  EXPECT_EQ(status(0).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status(0).message()), HasSubstr("50 bytes wait"));
  small->SetPending(71);  // with 30 of the third
  EXPECT_THAT(WaitForEnds(2), ElementsAre(2, 1));
  EXPECT_EQ(num_ended(), 2u) << "the third fits";
}

TEST_F(OutboxesTest, AWriteThatWaitsTooLongEndsItsCall) {
  Outboxes outboxes({.max_write_time = absl::Milliseconds(20)});
  const auto idle = outboxes.Open(Note(1));
  idle->SetPending(1000);
  const auto fast = outboxes.Open(Note(2));
  fast->BeginWrite(10);
  fast->EndWrite();
  const auto slow = outboxes.Open(Note(3));
  slow->BeginWrite(10);
  EXPECT_THAT(WaitForEnds(1), ElementsAre(3));
  EXPECT_EQ(status(0).code(), absl::StatusCode::kResourceExhausted);
  const auto later = outboxes.Open(Note(4));
  later->BeginWrite(10);
  EXPECT_THAT(WaitForEnds(2), ElementsAre(3, 4)) << "each once";
}

TEST_F(OutboxesTest, EndsOutsideItsLock) {
  Outboxes outboxes({.max_bytes = 1, .max_write_time = kLong});
  std::promise<size_t> bytes;
  const auto box =
      outboxes.Open([&](const absl::Status&) { bytes.set_value(outboxes.num_bytes()); });
  box->SetPending(2);
  EXPECT_EQ(bytes.get_future().get(), 2u);
}

}  // namespace
}  // namespace shoal::router
