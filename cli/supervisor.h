#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace shoal::cli {

// How long to wait before a process that died is started again. Starts are 100 ms apart at least,
// doubled by every death up to 5 s, and 100 ms again after a life of 30 s: one that lived longer
// than that is started at once.
class RestartBackoff {
 public:
  absl::Duration OnDeath(absl::Duration lived);

 private:
  absl::Duration next_ = absl::Milliseconds(100);
};

// How a process ended.
struct ExitState {
  bool by_signal = false;
  int value = 0;  // the signal, or the exit code

  // "exited with code 1", "was killed by signal 9".
  std::string ToString() const;
};

// Decides what `shoalctl serve` does with its router and ranks; no processes, clock or signals of
// its own (ProcessLoop has those). Events go in, actions come out in the order to run them.
//
//   kStarting -- ready --> kRunning -- stop signal --> kDraining -- router exits --> kStopping
//       a rank fails, or the router exits -------------------------------------------^
//
// A dead rank is started again while the router lives; one that hangs is killed. Only before the
// cluster was ever ready does a rank that ends by itself (a model file it cannot read) end
// everything. The stop signal goes to the router alone, which drains; the ranks follow when it is
// gone. A second stop signal kills, and so does a router that has not ended some seconds after its
// drain timeout.
class Supervisor {
 public:
  static constexpr int kRouter = -1;

  struct Action {
    enum class Kind { kSpawn, kSignal, kSay, kQuit };
    Kind kind;
    int process = kRouter;  // a rank, or kRouter: of kSpawn and kSignal
    int value = 0;          // the signal of kSignal, the exit code of kQuit
    std::string text;       // a line for stderr, of kSay
  };
  using Actions = std::vector<Action>;

  // `drain_timeout`: what the router gives its requests after the stop signal.
  Supervisor(int num_ranks, absl::Duration drain_timeout);

  Actions Start(absl::Time now);
  void OnReady();
  Actions OnStopSignal(absl::Time now, int signal);
  // Of a rank or kRouter.
  Actions OnExit(absl::Time now, int process, ExitState state);
  // The router says that a rank hangs, in the process `pid`; `current_pid` is the rank's now, 0 if
  // it has none. One that was replaced meanwhile is left alone.
  Actions OnHung(int rank, int64_t pid, int64_t current_pid);
  // When next_timer() has come.
  Actions OnTimer(absl::Time now);
  // InfiniteFuture if there is nothing to wait for.
  absl::Time next_timer() const;

 private:
  enum class Phase { kStarting, kRunning, kDraining, kStopping };
  struct Rank {
    bool alive = false;
    absl::Time started;
    absl::Time restart_at = absl::InfiniteFuture();
    RestartBackoff backoff;
  };

  void Spawn(absl::Time now, int process, Actions* actions);
  void SignalAll(int signal, Actions* actions);
  // Everything ends with `exit_code`; `why` is empty when that is no error.
  void Stop(absl::Time now, int exit_code, absl::string_view why, Actions* actions);
  void Kill(int exit_code, absl::string_view why, Actions* actions);
  void OnRouterExit(absl::Time now, ExitState state, Actions* actions);
  void OnRankExit(absl::Time now, int rank, ExitState state, Actions* actions);
  void QuitIfAllGone(Actions* actions);

  const absl::Duration drain_timeout_;
  Phase phase_ = Phase::kStarting;
  bool router_alive_ = false;
  std::vector<Rank> ranks_;
  absl::Time kill_at_ = absl::InfiniteFuture();  // of those that outlive kDraining or kStopping
  int exit_code_ = 0;
  std::string error_;  // said last, so that it is the last line
};

}  // namespace shoal::cli
