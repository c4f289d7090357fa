#pragma once

#include <functional>

#include "base/thread/mutex.h"

namespace grpc {
class ClientContext;
}

namespace shoal::cli {

// Ctrl-C (SIGINT) and SIGTERM: while a call runs they cancel it, so that the router stops computing
// at once; else they end the process with exit code 130 or 143. A second one while a call is being
// cancelled ends the process too.
//
// One for each process. Its thread lives as long as the process.
class Interrupt {
 public:
  // Blocks the signals in the caller and in all threads to come. REQUIRES: no other thread yet.
  static Interrupt* Install();

  // Between the two a signal cancels `context`.
  void Begin(grpc::ClientContext* context);
  // Returns whether a signal came since Begin.
  bool End();

  // From now on somebody converses: SIGINT between calls is nothing (an answer may have ended just
  // before the key), and `at_exit` runs before a signal ends the process, on the thread that
  // watches signals: it gives the terminal back.
  void BeginConversation(std::function<void()> at_exit);

 private:
  Interrupt() = default;
  void Run();

  base::Mutex mutex_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool was_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> at_exit_ ABSL_GUARDED_BY(mutex_);  // empty: no conversation
};

}  // namespace shoal::cli
