#include "cli/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "glog/logging.h"
#include "grpcpp/client_context.h"

namespace shoal::cli {
namespace {

sigset_t WatchedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

Interrupt* Interrupt::Install() {
  const sigset_t signals = WatchedSignals();
  CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);
  auto* interrupt = new Interrupt;  // lives as long as the process, as its thread does
  std::thread([interrupt] { interrupt->Run(); }).detach();
  return interrupt;
}

void Interrupt::Begin(grpc::ClientContext* context) {
  base::MutexLock lock(&mutex_);
  context_ = context;
  was_cancelled_ = false;
}

bool Interrupt::End() {
  base::MutexLock lock(&mutex_);
  context_ = nullptr;
  return was_cancelled_;
}

void Interrupt::BeginConversation(std::function<void()> at_exit) {
  base::MutexLock lock(&mutex_);
  at_exit_ = std::move(at_exit);
}

void Interrupt::Run() {
  const sigset_t signals = WatchedSignals();
  while (true) {
    int signal = 0;
    CHECK_EQ(sigwait(&signals, &signal), 0);
    base::MutexLock lock(&mutex_);
    if (signal == SIGINT && context_ == nullptr && at_exit_) continue;
    if (context_ == nullptr || was_cancelled_) {
      if (at_exit_) at_exit_();
      _exit(128 + signal);
    }
    was_cancelled_ = true;
    context_->TryCancel();
  }
}

}  // namespace shoal::cli
