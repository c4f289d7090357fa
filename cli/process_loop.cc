#include "cli/process_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"

extern char** environ;

namespace shoal::cli {
namespace {

constexpr int kExitNotFound = 127;  // as a shell says it

absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// Those that somebody wanted ignored stay so, as by nohup: a blocked signal would come through the
// signalfd all the same.
sigset_t WatchedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&signals, signal);
  }
  return signals;
}

// Starts a program with no stdin; its stdout goes to `stdout_fd`, or nowhere if that is -1.
// Returns 0 or an errno.
int SpawnChild(const std::vector<std::string>& args, int stdout_fd, pid_t* pid) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (stdout_fd >= 0) {
    posix_spawn_file_actions_adddup2(&files, stdout_fd, STDOUT_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  const sigset_t watched = WatchedSignals();
  posix_spawnattr_setsigdefault(&attributes, &watched);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const int error = posix_spawn(pid, argv[0], &files, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

}  // namespace

ProcessLoop::ProcessLoop(Options options)
    : options_(std::move(options)),
      supervisor_(static_cast<int>(options_.ranks.size()), options_.drain_timeout) {
  signal(SIGPIPE, SIG_IGN);  // a reader of our log that goes away is no reason to stop
  signal(SIGCHLD, SIG_DFL);  // a parent that ignores it would hide our children's ends from us
  const sigset_t signals = WatchedSignals();
  PCHECK(sigprocmask(SIG_BLOCK, &signals, nullptr) == 0);
  signal_fd_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  PCHECK(signal_fd_ >= 0);
}

ProcessLoop::~ProcessLoop() {
  close(signal_fd_);
  if (router_fd_ >= 0) close(router_fd_);
}

int ProcessLoop::Run() {
  Do(supervisor_.Start(SteadyNow()));
  while (!quits_) {
    WaitForEvents();
    ReadRouter();
    ReadSignals();
    ReapChildren();
    if (SteadyNow() >= supervisor_.next_timer()) Do(supervisor_.OnTimer(SteadyNow()));
  }
  return exit_code_;
}

void ProcessLoop::Do(const Supervisor::Actions& actions) {
  for (const Supervisor::Action& action : actions) {
    switch (action.kind) {
      case Supervisor::Action::Kind::kSpawn:
        Spawn(action.process);
        break;
      case Supervisor::Action::Kind::kSignal: {
        const auto child = pids_.find(action.process);
        if (child != pids_.end()) kill(child->second, action.value);
        break;
      }
      case Supervisor::Action::Kind::kSay:
        std::cerr << action.text << std::endl;
        break;
      case Supervisor::Action::Kind::kQuit:
        quits_ = true;
        exit_code_ = action.value;
        break;
    }
  }
  while (!unstarted_.empty()) {
    const int process = unstarted_.back();
    unstarted_.pop_back();
    Do(supervisor_.OnExit(SteadyNow(), process, {false, kExitNotFound}));
  }
}

void ProcessLoop::Spawn(int process) {
  const bool is_router = process == Supervisor::kRouter;
  const std::vector<std::string>& args = is_router ? options_.router : options_.ranks[process];
  int ends[2] = {-1, -1};
  if (is_router) {
    PCHECK(pipe2(ends, O_CLOEXEC) == 0);
    PCHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    router_fd_ = ends[0];
  }
  pid_t pid = 0;
  const int error = SpawnChild(args, ends[1], &pid);
  if (ends[1] >= 0) close(ends[1]);
  if (error != 0) {
    std::cerr << "error: cannot start " << args[0] << ": " << strerror(error) << std::endl;
    unstarted_.push_back(process);
    return;
  }
  pids_[process] = pid;
}

void ProcessLoop::WaitForEvents() {
  if (quits_) return;
  pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {router_fd_, POLLIN, 0}};  // poll skips a negative fd
  const absl::Time next = supervisor_.next_timer();
  int timeout_ms = -1;
  if (next != absl::InfiniteFuture()) {
    const absl::Duration left = absl::Ceil(next - SteadyNow(), absl::Milliseconds(1));
    timeout_ms = static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left)));
  }
  const int num_events = poll(fds, 2, timeout_ms);
  PCHECK(num_events >= 0 || errno == EINTR);
}

void ProcessLoop::ReadSignals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal != SIGCHLD) Do(supervisor_.OnStopSignal(SteadyNow(), signal));
  }
}

void ProcessLoop::ReapChildren() {
  std::vector<std::pair<int, ExitState>> exits;
  for (const auto& [process, pid] : pids_) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) != pid) continue;
    exits.push_back({process, WIFSIGNALED(status) ? ExitState{true, WTERMSIG(status)}
                                                  : ExitState{false, WEXITSTATUS(status)}});
  }
  for (const auto& [process, state] : exits) {
    if (process == Supervisor::kRouter) ReadRouter();  // what it said last
    pids_.erase(process);
    Do(supervisor_.OnExit(SteadyNow(), process, state));
  }
}

void ProcessLoop::TakeRouterLine(const std::string& line) {
  int rank = 0, pid = 0;
  if (!is_ready_ && absl::StartsWith(line, "READY")) {
    is_ready_ = true;
    supervisor_.OnReady();
    options_.on_ready(line);
  } else if (sscanf(line.c_str(), "HUNG rank=%d pid=%d", &rank, &pid) == 2) {
    const auto child = pids_.find(rank);
    Do(supervisor_.OnHung(rank, pid, child == pids_.end() ? 0 : child->second));
  } else {
    std::cerr << line << std::endl;
  }
}

void ProcessLoop::ReadRouter() {
  if (router_fd_ < 0) return;
  char buffer[4096];
  ssize_t size = 0;
  while ((size = read(router_fd_, buffer, sizeof(buffer))) > 0) router_text_.append(buffer, size);
  const bool ended = size == 0 || (errno != EAGAIN && errno != EINTR);
  size_t end = 0;
  while ((end = router_text_.find('\n')) != std::string::npos) {
    const std::string line = router_text_.substr(0, end);
    router_text_.erase(0, end + 1);
    TakeRouterLine(line);
  }
  if (ended) {
    close(router_fd_);
    router_fd_ = -1;
  }
}

}  // namespace shoal::cli
