#pragma once

#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/cpu/isa.h"

// What this machine reads and multiplies at best, measured in the run that it is compared with.
//
//   SHOAL_BENCH_THREADS=n     default: all CPUs
//   SHOAL_BENCH_CPU_TIME=1    one thread, and its CPU time instead of the wall's: for a machine
//                             that is busy
namespace shoal::bench {

inline bool UseCpuTime() { return std::getenv("SHOAL_BENCH_CPU_TIME") != nullptr; }

inline double Seconds() {
  timespec now;
  clock_gettime(UseCpuTime() ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

inline int NumThreads() {
  if (UseCpuTime()) {
    return 1;
  }
  if (const char* threads = std::getenv("SHOAL_BENCH_THREADS")) {
    return std::atoi(threads);
  }
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Runs work(thread) on all threads; the best rate of several tries, where each counts `amount`.
template <class Work>
double BestRate(double amount, const Work& work) {
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = Seconds();
    std::vector<std::thread> threads;
    for (int t = 0; t < NumThreads(); ++t) {
      threads.emplace_back([&work, t] { work(t); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    best = std::max(best, amount / (Seconds() - start));
  }
  return best;
}

// Bytes a second, of all threads together, out of 256 MB in huge pages where there are some (as the
// kernels' memory).
inline double ReadBandwidth() {
  static const double rate = [] {
    const size_t words = (size_t{256} << 20) / sizeof(uint64_t);
    const size_t huge_page = size_t{2} << 20;
    auto* const memory =
        static_cast<uint64_t*>(std::aligned_alloc(huge_page, words * sizeof(uint64_t)));
    madvise(memory, words * sizeof(uint64_t), MADV_HUGEPAGE);
    std::fill_n(memory, words, 1);
    const double best = BestRate(static_cast<double>(words * sizeof(uint64_t)), [&](int t) {
      const size_t begin = words * t / NumThreads();
      const size_t end = words * (t + 1) / NumThreads();
      __m128i a = {}, b = {}, c = {}, d = {};
      for (size_t i = begin; i + 8 <= end; i += 8) {
        const auto* from = reinterpret_cast<const __m128i*>(&memory[i]);
        a = _mm_add_epi64(a, _mm_loadu_si128(from));
        b = _mm_add_epi64(b, _mm_loadu_si128(from + 1));
        c = _mm_add_epi64(c, _mm_loadu_si128(from + 2));
        d = _mm_add_epi64(d, _mm_loadu_si128(from + 3));
      }
      a = _mm_add_epi64(_mm_add_epi64(a, b), _mm_add_epi64(c, d));
      benchmark::DoNotOptimize(a);
    });
    std::free(memory);
    return best;
  }();
  return rate;
}

inline constexpr int64_t kPeakRounds = 5'000'000;

// Twelve independent chains of one instruction, in registers of their own.
#define SHOAL_CHAINS(instruction)                                                                  \
  for (int64_t round = 0; round < kPeakRounds; ++round) {                                          \
    asm volatile(instruction                                                                       \
                 " %%zmm0, %%zmm1, %%zmm4\n" instruction " %%zmm0, %%zmm1, %%zmm5\n" instruction   \
                 " %%zmm0, %%zmm1, %%zmm6\n" instruction " %%zmm0, %%zmm1, %%zmm7\n" instruction   \
                 " %%zmm0, %%zmm1, %%zmm8\n" instruction " %%zmm0, %%zmm1, %%zmm9\n" instruction   \
                 " %%zmm0, %%zmm1, %%zmm10\n" instruction " %%zmm0, %%zmm1, %%zmm11\n" instruction \
                 " %%zmm0, %%zmm1, %%zmm12\n" instruction " %%zmm0, %%zmm1, %%zmm13\n" instruction \
                 " %%zmm0, %%zmm1, %%zmm14\n" instruction " %%zmm0, %%zmm1, %%zmm15\n"             \
                 :                                                                                 \
                 :                                                                                 \
                 : "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",      \
                   "xmm13", "xmm14", "xmm15");                                                     \
  }

// Operations a second, of all threads together; 0 on machines without AVX-512 VNNI.
inline double PeakInt8() {
  static const double rate = [] {
    return kernels::IsaSupported(kernels::Isa::kAvx512)
               ? BestRate(12.0 * 128 * kPeakRounds * NumThreads(),
                          [](int) { SHOAL_CHAINS("vpdpbusd") })
               : 0.0;
  }();
  return rate;
}

inline double PeakFloat() {
  static const double rate = [] {
    return kernels::IsaSupported(kernels::Isa::kAvx512)
               ? BestRate(12.0 * 32 * kPeakRounds * NumThreads(),
                          [](int) {
                            asm volatile(
                                "vpxor %%xmm0, %%xmm0, %%xmm0\n vpxor %%xmm1, %%xmm1, %%xmm1"
                                :
                                :
                                : "xmm0", "xmm1");
                            SHOAL_CHAINS("vfmadd231ps")
                          })
               : 0.0;
  }();
  return rate;
}

#undef SHOAL_CHAINS

}  // namespace shoal::bench
