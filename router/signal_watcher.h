#pragma once

#include <functional>
#include <thread>

#include "base/thread/mutex.h"

namespace shoal::router {

// Takes SIGTERM and SIGINT on a thread of its own, where they may do ordinary work. The first calls
// `on_first`; a second one ends the process at once with exit code 1.
class SignalWatcher {
 public:
  // Before any other thread starts: blocks the signals in the caller, and so in all threads to
  // come.
  static void Block();

  // `on_first` runs on the watcher's thread.
  explicit SignalWatcher(std::function<void()> on_first);
  ~SignalWatcher();

  // Until the first signal has come and `on_first` returned.
  void Wait();

 private:
  void Run();
  bool has_come() const;

  const std::function<void()> on_first_;
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  bool has_come_ ABSL_GUARDED_BY(mutex_) = false;
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace shoal::router
