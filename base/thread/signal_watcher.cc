#include "base/thread/signal_watcher.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace shoal::base {
namespace {

constexpr int kEndOfWatch = SIGUSR1;  // from the destructor to the thread

sigset_t SetOf(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

// Async-signal-safe.
void ExitAtOnce(int) {
  constexpr char kText[] = "a second signal: exiting at once\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(1);
}

// From now on SIGTERM and SIGINT, which every other thread blocks, come to this thread and end the
// process, whatever it is doing.
void EndProcessAtNextSignal() {
  struct sigaction action = {};
  action.sa_handler = ExitAtOnce;
  for (const int signal : {SIGTERM, SIGINT}) CHECK_EQ(sigaction(signal, &action, nullptr), 0);
  const sigset_t signals = SetOf({SIGTERM, SIGINT});
  CHECK_EQ(pthread_sigmask(SIG_UNBLOCK, &signals, nullptr), 0);
}

}  // namespace

void SignalWatcher::Block() {
  const sigset_t signals = SetOf({SIGTERM, SIGINT, kEndOfWatch});
  CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);
}

SignalWatcher::SignalWatcher(std::function<void()> on_first)
    : on_first_(std::move(on_first)), thread_([this] { Run(); }) {}

SignalWatcher::~SignalWatcher() {
  {
    base::MutexLock lock(&mutex_);
    stops_ = true;
  }
  pthread_kill(thread_.native_handle(), kEndOfWatch);
  thread_.join();
}

void SignalWatcher::Wait() {
  base::MutexLock lock(&mutex_);
  while (!has_come_) changed_.Wait(&mutex_);
}

void SignalWatcher::Run() {
  if (!AwaitFirst()) return;
  EndProcessAtNextSignal();
  on_first_();
  {
    base::MutexLock lock(&mutex_);
    has_come_ = true;
    changed_.SignalAll();
  }
  AwaitEnd();
}

bool SignalWatcher::AwaitFirst() {
  const sigset_t signals = SetOf({SIGTERM, SIGINT, kEndOfWatch});
  while (true) {
    int signal = 0;
    CHECK_EQ(sigwait(&signals, &signal), 0);
    if (signal != kEndOfWatch) {
      LOG(INFO) << "signal " << signal << ": stopping";
      return true;
    }
    base::MutexLock lock(&mutex_);
    if (stops_) return false;
  }
}

void SignalWatcher::AwaitEnd() {
  const sigset_t signals = SetOf({kEndOfWatch});
  while (true) {
    int signal = 0;
    CHECK_EQ(sigwait(&signals, &signal), 0);
    base::MutexLock lock(&mutex_);
    if (stops_) return;
  }
}

absl::Status FollowParent(pid_t parent_pid, int signal) {
  PCHECK(prctl(PR_SET_PDEATHSIG, signal) == 0);
  if (getppid() == parent_pid) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--parent-pid is ", parent_pid, ", but the parent of this process is ",
                   getppid(), ": the one that started it has died, or the flag is wrong"));
}

}  // namespace shoal::base
