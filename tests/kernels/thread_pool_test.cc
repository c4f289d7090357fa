#include "kernels/cpu/thread_pool.h"

#include <dirent.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace shoal::kernels::cpu {
namespace {

TEST(ThreadPoolTest, CallsEveryThreadOnceEachTime) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads, {});
    std::vector<int64_t> calls(threads);
    for (int i = 0; i < 2000; ++i) {
      pool.Run([&](int thread) { ++calls[thread]; });
      if (i % 100 == 0) {
        pool.EndStep();
      }
    }
    for (const int64_t count : calls) {
      EXPECT_EQ(count, 2000);
    }
  }
}

TEST(ThreadPoolTest, ResultsOfAllThreadsAreVisibleAfterRun) {
  ThreadPool pool(4, {});
  std::vector<int64_t> values(4);
  for (int64_t i = 1; i < 2000; ++i) {
    pool.Run([&](int thread) { values[thread] += i; });
    int64_t sum = 0;
    for (const int64_t v : values) {
      sum += v;
    }
    ASSERT_EQ(sum, 4 * i * (i + 1) / 2);
  }
}

TEST(ThreadPoolTest, UnusedPoolEnds) { ThreadPool pool(5, {}); }

TEST(ThreadPoolTest, CpusThatDoNotExistAreSurvived) {
  ThreadPool pool(2, {1000});
  std::atomic<int> calls{0};
  pool.Run([&](int) { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(ThreadPoolTest, ThreadsRunOnTheirCpu) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) {
    ++cpu;
  }
  std::thread([cpu] {  // a thread of its own, as the caller is pinned too
    ThreadPool pool(3, {cpu});
    std::vector<int> seen(3, -1);
    pool.Run([&](int thread) { seen[thread] = sched_getcpu(); });
    EXPECT_EQ(seen, std::vector<int>(3, cpu));
  })
      .join();
}

// Thread ids of this process in state R, the caller aside.
int RunningThreads() {
  int running = 0;
  const std::string self = std::to_string(gettid());
  DIR* dir = opendir("/proc/self/task");
  while (const dirent* entry = readdir(dir)) {
    const std::string tid = entry->d_name;
    if (tid[0] == '.' || tid == self) {
      continue;
    }
    std::ifstream file("/proc/self/task/" + tid + "/stat");
    std::string stat;
    std::getline(file, stat);
    const size_t at = stat.rfind(')');
    running += at != std::string::npos && at + 2 < stat.size() && stat[at + 2] == 'R';
  }
  closedir(dir);
  return running;
}

// Waiting costs nothing: without work, and even without EndStep(), threads soon sleep.
TEST(ThreadPoolTest, WaitingThreadsFallAsleep) {
  for (const bool end_step : {false, true}) {
    ThreadPool pool(2, {});
    pool.Run([](int) {});
    if (end_step) {
      pool.EndStep();
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    int asleep = 0;  // times in a row that nobody ran
    while (asleep < 20 && std::chrono::steady_clock::now() < deadline) {
      asleep = RunningThreads() == 0 ? asleep + 1 : 0;
      std::this_thread::yield();
    }
    EXPECT_EQ(asleep, 20);
  }
}

}  // namespace
}  // namespace shoal::kernels::cpu
