#include "base/thread/signal_watcher.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::base {
namespace {

// Each body is a process of its own: the signals and the mask stay there.
class SignalWatcherTest : public testing::Test {
 protected:
  SignalWatcherTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(SignalWatcherTest, TheFirstSignalRunsTheWorkAndEndsTheWait) {
  for (const int signal : {SIGTERM, SIGINT}) {
    EXPECT_EXIT(
        {
          SignalWatcher::Block();
          std::atomic<int> calls = 0;
          SignalWatcher watcher([&] { ++calls; });
          kill(getpid(), signal);
          watcher.Wait();
          _exit(calls == 1 ? 7 : 8);
        },
        testing::ExitedWithCode(7), "stopping");
  }
}

TEST_F(SignalWatcherTest, ASignalFromBeforeTheWatcherIsNotLost) {
  EXPECT_EXIT(
      {
        SignalWatcher::Block();
        kill(getpid(), SIGTERM);
        SignalWatcher([] {}).Wait();
        _exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST_F(SignalWatcherTest, ASecondSignalEndsTheProcessAfterTheWork) {
  EXPECT_EXIT(
      {
        SignalWatcher::Block();
        SignalWatcher watcher([] {});
        kill(getpid(), SIGTERM);
        watcher.Wait();
        kill(getpid(), SIGINT);
        while (true) pause();
      },
      testing::ExitedWithCode(1), "a second signal");
}

TEST_F(SignalWatcherTest, ASecondSignalEndsTheProcessWhileTheWorkHangs) {
  EXPECT_EXIT(
      {
        SignalWatcher::Block();
        Mutex mutex;
        MutexLock held(&mutex);
        SignalWatcher watcher([&] {
          kill(getpid(), SIGTERM);
          MutexLock never(&mutex);
        });
        kill(getpid(), SIGTERM);
        watcher.Wait();
      },
      testing::ExitedWithCode(1), "a second signal");
}

TEST_F(SignalWatcherTest, EndsWithoutASignal) {
  EXPECT_EXIT(
      {
        SignalWatcher::Block();
        {
          SignalWatcher watcher([] { _exit(8); });
        }
        _exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST(FollowParentTest, RefusesAParentThatIsAnother) {
  EXPECT_EXIT(
      {
        const absl::Status status = FollowParent(getpid(), SIGTERM);
        _exit(status.code() == absl::StatusCode::kFailedPrecondition ? 7 : 8);
      },
      testing::ExitedWithCode(7), "");
  EXPECT_EXIT(_exit(FollowParent(getppid(), SIGTERM).ok() ? 7 : 8), testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace shoal::base
