#include "base/thread/mutex.h"

#include <thread>

#include "gtest/gtest.h"

namespace shoal::base {
namespace {

TEST(CondVarTest, AWaitWithoutEndWaits) {
  for (const absl::Duration timeout : {absl::InfiniteDuration(), absl::Hours(24 * 365 * 280)}) {
    Mutex mutex;
    CondVar changed;
    bool is_set = false;
    int num_waits = 0;
    std::thread waiter([&] {
      MutexLock lock(&mutex);
      while (!is_set) {
        EXPECT_TRUE(changed.WaitFor(&mutex, timeout));
        ++num_waits;
      }
    });
    {
      MutexLock lock(&mutex);
      is_set = true;
      changed.SignalAll();
    }
    waiter.join();
    EXPECT_LT(num_waits, 100);
  }
}

TEST(CondVarTest, AWaitEndsWithItsTimeout) {
  for (const absl::Duration timeout :
       {absl::Milliseconds(1), absl::ZeroDuration(), -absl::InfiniteDuration()}) {
    Mutex mutex;
    CondVar changed;
    MutexLock lock(&mutex);
    while (changed.WaitFor(&mutex, timeout)) {  // woken without a signal
    }
  }
}

}  // namespace
}  // namespace shoal::base
