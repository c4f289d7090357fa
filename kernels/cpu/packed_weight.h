#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/packed_layout.h"
#include "kernels/cpu/thread_pool.h"

namespace shoal::kernels::cpu {

// A weight in the layout of packed_layout.h. Owns its memory; never changes.
class CpuMatrix : public PackedMatrix {
 public:
  virtual const CpuWeight& cpu_weight() const = 0;
};

// Reads the slice once, on all threads of the pool. INVALID_ARGUMENT: a type that is no weight, a
// slice outside of the matrix, columns that cut a block of 32 of a quantised type.
// RESOURCE_EXHAUSTED: no memory.
absl::StatusOr<std::unique_ptr<CpuMatrix>> PackWeight(const WeightSlice& slice, ThreadPool* pool);

}  // namespace shoal::kernels::cpu
