#include "cli/supervisor.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/exit_code.h"

namespace shoal::cli {
namespace {

using Kind = Supervisor::Action::Kind;

constexpr absl::Duration kFirstDelay = absl::Milliseconds(100);
constexpr absl::Duration kMaxDelay = absl::Seconds(5);
constexpr absl::Duration kStableLife = absl::Seconds(30);
constexpr absl::Duration kStopGrace = absl::Seconds(5);

// Killed from outside (by an operator, or for want of memory), not by a fault of its own.
bool WasKilled(ExitState state) {
  return state.by_signal && (state.value == SIGKILL || state.value == SIGTERM);
}

}  // namespace

absl::Duration RestartBackoff::OnDeath(absl::Duration lived) {
  if (lived >= kStableLife) next_ = kFirstDelay;
  const absl::Duration delay = std::max(absl::ZeroDuration(), next_ - lived);
  next_ = std::min(next_ * 2, kMaxDelay);
  return delay;
}

std::string ExitState::ToString() const {
  return by_signal ? absl::StrCat("was killed by signal ", value)
                   : absl::StrCat("exited with code ", value);
}

Supervisor::Supervisor(int num_ranks, absl::Duration drain_timeout)
    : drain_timeout_(drain_timeout), ranks_(num_ranks) {}

Supervisor::Actions Supervisor::Start(absl::Time now) {
  Actions actions;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) Spawn(now, rank, &actions);
  Spawn(now, kRouter, &actions);
  return actions;
}

void Supervisor::OnReady() {
  if (phase_ == Phase::kStarting) phase_ = Phase::kRunning;
}

Supervisor::Actions Supervisor::OnStopSignal(absl::Time now, int signal) {
  Actions actions;
  if (phase_ == Phase::kStarting || phase_ == Phase::kRunning) {
    phase_ = Phase::kDraining;
    kill_at_ = now + drain_timeout_ + kStopGrace;
    actions.push_back({Kind::kSignal, kRouter, SIGTERM, ""});
    return actions;
  }
  Kill(phase_ == Phase::kDraining ? 128 + signal : exit_code_, error_, &actions);
  return actions;
}

Supervisor::Actions Supervisor::OnExit(absl::Time now, int process, ExitState state) {
  Actions actions;
  if (process == kRouter) {
    OnRouterExit(now, state, &actions);
  } else {
    OnRankExit(now, process, state, &actions);
  }
  return actions;
}

Supervisor::Actions Supervisor::OnHung(int rank, int64_t pid, int64_t current_pid) {
  if (rank < 0 || rank >= static_cast<int>(ranks_.size()) || !ranks_[rank].alive) return {};
  if (pid != current_pid || phase_ == Phase::kStopping) return {};
  return {{Kind::kSay, rank, 0, absl::StrCat("rank ", rank, " hangs: killing process ", pid)},
          {Kind::kSignal, rank, SIGKILL, ""}};
}

Supervisor::Actions Supervisor::OnTimer(absl::Time now) {
  Actions actions;
  if (phase_ == Phase::kStopping) {
    if (now >= kill_at_) {
      kill_at_ = absl::InfiniteFuture();
      SignalAll(SIGKILL, &actions);
    }
    return actions;
  }
  if (now >= kill_at_) {
    Kill(kExitRuntime, "the router hung: it did not end after its drain timeout and was killed",
         &actions);
    return actions;
  }
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    if (now >= ranks_[rank].restart_at) Spawn(now, rank, &actions);
  }
  return actions;
}

absl::Time Supervisor::next_timer() const {
  if (phase_ == Phase::kStopping) return kill_at_;
  absl::Time next = kill_at_;
  for (const Rank& rank : ranks_) next = std::min(next, rank.restart_at);
  return next;
}

void Supervisor::Spawn(absl::Time now, int process, Actions* actions) {
  if (process == kRouter) {
    router_alive_ = true;
  } else {
    Rank& rank = ranks_[process];
    rank.alive = true;
    rank.started = now;
    rank.restart_at = absl::InfiniteFuture();
  }
  actions->push_back({Kind::kSpawn, process, 0, ""});
}

void Supervisor::SignalAll(int signal, Actions* actions) {
  if (router_alive_) actions->push_back({Kind::kSignal, kRouter, signal, ""});
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    if (ranks_[rank].alive) actions->push_back({Kind::kSignal, rank, signal, ""});
  }
}

void Supervisor::Stop(absl::Time now, int exit_code, absl::string_view why, Actions* actions) {
  phase_ = Phase::kStopping;
  exit_code_ = exit_code;
  error_ = std::string(why);
  kill_at_ = now + kStopGrace;
  SignalAll(SIGTERM, actions);
}

void Supervisor::Kill(int exit_code, absl::string_view why, Actions* actions) {
  phase_ = Phase::kStopping;
  exit_code_ = exit_code;
  error_ = std::string(why);
  kill_at_ = absl::InfiniteFuture();
  SignalAll(SIGKILL, actions);
}

void Supervisor::OnRouterExit(absl::Time now, ExitState state, Actions* actions) {
  router_alive_ = false;
  const int code = state.by_signal ? 128 + state.value : state.value;
  if (phase_ == Phase::kDraining) {
    Stop(now, code, code == 0 ? "" : absl::StrCat("the router ", state.ToString()), actions);
  } else if (phase_ != Phase::kStopping) {
    Stop(now, code == 0 ? kExitRuntime : code, absl::StrCat("the router ", state.ToString()),
         actions);
  }
  QuitIfAllGone(actions);
}

void Supervisor::OnRankExit(absl::Time now, int index, ExitState state, Actions* actions) {
  Rank& rank = ranks_[index];
  rank.alive = false;
  if (phase_ == Phase::kStopping) {
    QuitIfAllGone(actions);
    return;
  }
  const std::string what = absl::StrCat("rank ", index, " ", state.ToString());
  if (phase_ == Phase::kStarting && !WasKilled(state)) {
    Stop(now, kExitRuntime, absl::StrCat(what, " before the cluster was ready"), actions);
    QuitIfAllGone(actions);
    return;
  }
  const absl::Duration delay = rank.backoff.OnDeath(now - rank.started);
  rank.restart_at = now + delay;
  actions->push_back(
      {Kind::kSay, index, 0,
       absl::StrCat(what, ": restarting in ",
                    absl::FormatDuration(absl::Ceil(delay, absl::Milliseconds(1))))});
}

void Supervisor::QuitIfAllGone(Actions* actions) {
  if (router_alive_) return;
  if (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.alive; })) {
    return;
  }
  if (!error_.empty()) actions->push_back({Kind::kSay, kRouter, 0, "error: " + error_});
  actions->push_back({Kind::kQuit, kRouter, exit_code_, ""});
}

}  // namespace shoal::cli
