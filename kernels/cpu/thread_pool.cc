#include "kernels/cpu/thread_pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/cpu_quota.h"
#include "glog/logging.h"

namespace shoal::kernels::cpu {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr uint32_t kDefaultMxcsr = 0x1f80;  // nearest, subnormals kept, all exceptions masked

void FutexWait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr,
          nullptr, 0);
}

// A CPU that went offline since is no reason to fail: the thread then runs anywhere.
void PinThisThread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

// Spins until ready() or the time is over; returns ready().
template <class Ready>
bool SpinUntil(const Ready& ready) {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) {
        return true;
      }
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  return ready();
}

class FloatEnvironment {
 public:
  FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(kDefaultMxcsr); }
  ~FloatEnvironment() { _mm_setcsr(saved_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  const uint32_t saved_;
};

}  // namespace

ThreadPool::ThreadPool(int num_threads, std::vector<int> cpus)
    : num_threads_(num_threads),
      cpus_(std::move(cpus)),
      may_spin_(num_threads > 1 && num_threads <= base::UsableCpus()) {
  CHECK_GE(num_threads, 1);
  for (int i = 1; i < num_threads; ++i) {
    threads_.emplace_back([this, i] { Loop(i); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  FutexWakeAll(&generation_);
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ThreadPool::EndStep() { in_step_.store(false, std::memory_order_relaxed); }

void ThreadPool::PinCaller() {
  if (!cpus_.empty() && !caller_pinned_) {
    PinThisThread(cpus_[0]);
  }
  caller_pinned_ = true;
}

void ThreadPool::RunHereErased(Function function, const void* context) {
  PinCaller();
  const FloatEnvironment environment;
  function(context, 0);
}

void ThreadPool::RunErased(Function function, const void* context) {
  PinCaller();
  const FloatEnvironment environment;
  if (num_threads_ > 1) {
    function_ = function;
    context_ = context;
    pending_.store(num_threads_ - 1, std::memory_order_relaxed);
    in_step_.store(true, std::memory_order_relaxed);
    // Sequentially consistent with WaitForWork(): either we see the sleeper or it sees the work.
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      FutexWakeAll(&generation_);
    }
  }
  function(context, 0);
  if (num_threads_ > 1) {
    WaitForOthers();
  }
}

void ThreadPool::WaitForOthers() {
  const auto done = [this] { return pending_.load(std::memory_order_acquire) == 0; };
  if (done() || (may_spin_ && SpinUntil(done))) {
    return;
  }
  caller_sleeps_.store(true, std::memory_order_seq_cst);
  while (true) {
    const uint32_t pending = pending_.load(std::memory_order_seq_cst);
    if (pending == 0) {
      break;
    }
    FutexWait(&pending_, pending);
  }
  caller_sleeps_.store(false, std::memory_order_relaxed);
}

uint32_t ThreadPool::WaitForWork(uint32_t seen) {
  const auto ready = [this, seen] {
    return generation_.load(std::memory_order_acquire) != seen ||
           !in_step_.load(std::memory_order_relaxed);
  };
  if (may_spin_) {
    SpinUntil(ready);
  }
  uint32_t generation = generation_.load(std::memory_order_acquire);
  while (generation == seen) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (generation_.load(std::memory_order_seq_cst) == seen) {
      FutexWait(&generation_, seen);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    generation = generation_.load(std::memory_order_acquire);
  }
  return generation;
}

void ThreadPool::Loop(int thread) {
  if (!cpus_.empty()) {
    PinThisThread(cpus_[thread % cpus_.size()]);
  }
  _mm_setcsr(kDefaultMxcsr);
  uint32_t seen = 0;
  while (true) {
    seen = WaitForWork(seen);
    if (stop_.load(std::memory_order_relaxed)) {
      return;
    }
    function_(context_, thread);
    if (pending_.fetch_sub(1, std::memory_order_seq_cst) == 1 &&
        caller_sleeps_.load(std::memory_order_seq_cst)) {
      FutexWakeAll(&pending_);
    }
  }
}

}  // namespace shoal::kernels::cpu
