#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/supervisor.h"

namespace shoal::cli {

// Gives Supervisor its processes, its clock and its signals. Sleeps in poll() and nowhere else.
//
// Every child is in a process group of its own, so that Ctrl-C in a terminal reaches only serve;
// the children are told by their flags to die with it. Their stderr is ours.
class ProcessLoop {
 public:
  struct Options {
    std::vector<std::vector<std::string>> ranks;  // argv of each
    std::vector<std::string> router;              // argv
    absl::Duration drain_timeout;                 // of the router
    // The router's first line that starts with READY, without its end.
    std::function<void(absl::string_view line)> on_ready;
  };

  // Blocks SIGTERM, SIGINT, SIGHUP and SIGCHLD for good. REQUIRES: no other thread yet.
  explicit ProcessLoop(Options options);
  ~ProcessLoop();

  // Until all children are gone. Returns the exit code.
  int Run();

 private:
  void Do(const Supervisor::Actions& actions);
  void Spawn(int process);
  void WaitForEvents();
  void ReadSignals();
  void ReapChildren();
  void ReadRouter();
  void TakeRouterLine(const std::string& line);

  const Options options_;
  Supervisor supervisor_;
  std::map<int, pid_t> pids_;   // of living children, by rank or Supervisor::kRouter
  std::vector<int> unstarted_;  // could not be spawned; Do tells the supervisor
  int signal_fd_ = -1;
  int router_fd_ = -1;  // the router's stdout; -1 when it is closed
  std::string router_text_;
  bool is_ready_ = false;
  bool quits_ = false;
  int exit_code_ = 0;
};

}  // namespace shoal::cli
