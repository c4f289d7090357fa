#pragma once

#include <string>

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

  // Between the two Ctrl-C is a new line: it drops what was typed (the terminal does that) and
  // writes `prompt` on stderr again.
  void BeginPrompt(std::string prompt);
  void EndPrompt();

 private:
  Interrupt() = default;
  void Run();

  base::Mutex mutex_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool was_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::string prompt_ ABSL_GUARDED_BY(mutex_);  // empty: nobody is asked
};

}  // namespace shoal::cli
