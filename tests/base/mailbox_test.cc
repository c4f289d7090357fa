#include "base/thread/mailbox.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace shoal::base {
namespace {

TEST(MailboxTest, DeliversInOrderAndRefusesWhenFull) {
  Mailbox<int> box(2);
  EXPECT_TRUE(box.TryPush(1));
  EXPECT_TRUE(box.TryPush(2));
  EXPECT_FALSE(box.TryPush(3));
  EXPECT_EQ(box.size(), 2u);
  EXPECT_EQ(box.Pop(), 1);
  EXPECT_EQ(box.Pop(), 2);
  EXPECT_EQ(box.TryPop(), std::nullopt);
}

TEST(MailboxTest, DrainsAfterCloseAndThenEnds) {
  Mailbox<int> box(4);
  EXPECT_TRUE(box.TryPush(7));
  box.Close();
  EXPECT_FALSE(box.TryPush(8));
  EXPECT_EQ(box.Pop(), 7);
  EXPECT_EQ(box.Pop(), std::nullopt);
}

TEST(MailboxTest, LosesNothingFromManyProducers) {
  constexpr int kProducers = 4;
  constexpr int kEach = 2000;
  Mailbox<int> box(16);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&box, p] {
      for (int i = 0; i < kEach; ++i) {
        int item = p * kEach + i;
        while (!box.TryPush(std::move(item))) std::this_thread::yield();
      }
    });
  }
  std::vector<int> last(kProducers, -1);
  for (int i = 0; i < kProducers * kEach; ++i) {
    const int item = *box.Pop();
    EXPECT_LT(last[item / kEach], item % kEach) << "out of order";
    last[item / kEach] = item % kEach;
  }
  for (std::thread& thread : producers) thread.join();
  EXPECT_EQ(box.size(), 0u);
}

}  // namespace
}  // namespace shoal::base
