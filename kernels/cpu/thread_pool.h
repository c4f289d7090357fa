#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace shoal::kernels::cpu {

// Threads that run the slices of an op. The thread that calls Run() is thread 0 and takes part.
//
// Within a step (from the first Run() to EndStep()) a thread that waits spins for some 50 us, then
// sleeps on a futex; between steps everyone sleeps. Nobody ever spins when the process has fewer
// CPUs than the pool has threads. Run() allocates nothing and takes no lock.
//
// Every thread computes with the default floating-point environment (round to nearest, subnormals
// kept, exceptions masked), whatever the caller's is; the caller's is restored.
//
// One thread at a time drives a pool.
class ThreadPool {
 public:
  // Starts num_threads - 1 threads. When `cpus` is not empty, thread i runs only on cpus[i % size];
  // for i = 0 that is the thread that first calls Run(). REQUIRES: num_threads >= 1.
  ThreadPool(int num_threads, std::vector<int> cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls work(thread) once for each thread in [0, num_threads()) and returns when all are done.
  template <class Work>
  void Run(const Work& work) {
    RunErased([](const void* context, int thread) { (*static_cast<const Work*>(context))(thread); },
              &work);
  }

  // Calls work(0) on this thread alone, in the pool's floating-point environment.
  template <class Work>
  void RunHere(const Work& work) {
    RunHereErased(
        [](const void* context, int thread) { (*static_cast<const Work*>(context))(thread); },
        &work);
  }

  // No work follows for now: waiting threads go to sleep at once.
  void EndStep();

 private:
  using Function = void (*)(const void* context, int thread);

  void RunErased(Function function, const void* context);
  void RunHereErased(Function function, const void* context);
  void Loop(int thread);
  uint32_t WaitForWork(uint32_t seen);
  void WaitForOthers();
  void PinCaller();

  const int num_threads_;
  const std::vector<int> cpus_;
  const bool may_spin_;
  bool caller_pinned_ = false;

  // The work of generation `generation_`; written by the driver before it is published there.
  Function function_ = nullptr;
  const void* context_ = nullptr;

  alignas(64) std::atomic<uint32_t> generation_{0};  // futex
  std::atomic<int> sleepers_{0};
  std::atomic<bool> in_step_{false};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> pending_{0};  // futex; threads that have not finished
  std::atomic<bool> caller_sleeps_{false};

  std::vector<std::thread> threads_;
};

}  // namespace shoal::kernels::cpu
