#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace shoal::parallel {

// Sleeps while `word` has the value `expected`, until FutexWake, at most `timeout`; may return
// early for no reason. The word may lie in memory that several processes share.
void FutexWait(std::atomic<uint32_t>* word, uint32_t expected, absl::Duration timeout);

// Wakes all threads, of all processes, that sleep on `word`.
void FutexWake(std::atomic<uint32_t>* word);

// Tells the core that this is a spin loop.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace shoal::parallel
