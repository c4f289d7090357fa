#include "router/signal_watcher.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "glog/logging.h"

namespace shoal::router {
namespace {

// SIGTERM and SIGINT; SIGUSR1 from the destructor ends the watcher.
sigset_t WatchedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGUSR1);
  return signals;
}

}  // namespace

void SignalWatcher::Block() {
  const sigset_t signals = WatchedSignals();
  CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);
}

SignalWatcher::SignalWatcher(std::function<void()> on_first)
    : on_first_(std::move(on_first)), thread_([this] { Run(); }) {}

SignalWatcher::~SignalWatcher() {
  {
    base::MutexLock lock(&mutex_);
    stops_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

void SignalWatcher::Wait() {
  base::MutexLock lock(&mutex_);
  while (!has_come_) changed_.Wait(&mutex_);
}

bool SignalWatcher::has_come() const {
  base::MutexLock lock(&mutex_);
  return has_come_;
}

void SignalWatcher::Run() {
  const sigset_t signals = WatchedSignals();
  while (true) {
    int signal = 0;
    CHECK_EQ(sigwait(&signals, &signal), 0);
    {
      base::MutexLock lock(&mutex_);
      if (stops_) return;
    }
    if (signal == SIGUSR1) continue;
    if (has_come()) {
      LOG(WARNING) << "a second signal: exiting at once";
      google::FlushLogFiles(google::INFO);
      _exit(1);
    }
    LOG(INFO) << "signal " << signal << ": draining";
    on_first_();
    base::MutexLock lock(&mutex_);
    has_come_ = true;
    changed_.SignalAll();
  }
}

}  // namespace shoal::router
