#pragma once

#include <sys/types.h>

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "base/thread/mutex.h"

namespace shoal::base {

// Takes SIGTERM and SIGINT on a thread of its own, where they may do ordinary work. The first calls
// `on_first`; a second one ends the process at once with exit code 1, also while `on_first` runs or
// hangs. One at a time in a process.
class SignalWatcher {
 public:
  // Before any other thread starts: blocks the signals in the caller, and so in all threads to
  // come.
  static void Block();

  // `on_first` runs on the watcher's thread. REQUIRES: Block() was called.
  explicit SignalWatcher(std::function<void()> on_first);
  // Waits for `on_first`, if it runs.
  ~SignalWatcher();

  // Until the first signal has come and `on_first` returned.
  void Wait();

 private:
  void Run();
  // False when the destructor wants the thread to end.
  bool AwaitFirst();
  void AwaitEnd();

  const std::function<void()> on_first_;
  base::Mutex mutex_;
  base::CondVar changed_;
  bool has_come_ ABSL_GUARDED_BY(mutex_) = false;
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Asks for `signal` when the parent dies, so that nothing is left behind. FAILED_PRECONDITION if
// the parent is not `parent_pid`: it may have died before the call.
absl::Status FollowParent(pid_t parent_pid, int signal);

}  // namespace shoal::base
