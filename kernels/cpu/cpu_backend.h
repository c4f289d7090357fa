#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/isa.h"

namespace shoal::kernels {

struct CpuOptions {
  int threads = 1;         // compute threads, the calling one included; 1 to 1024
  std::vector<int> cpus;   // thread i runs only on cpus[i % size]; empty: anywhere
  std::optional<Isa> isa;  // default: the fastest this machine has
};

// The CPU backend. Ops run when they are called, on the calling thread and threads - 1 others; they
// give the same bits for any number of threads and any instruction set. Synchronize() marks the
// end of a step: waiting threads stop spinning. After loading, ops allocate nothing.
//
// Limits of its ops: head_dim <= 512; rows of JoinAdd come from at most kMaxLeaves parts.
//
// INVALID_ARGUMENT: threads or cpus out of range. FAILED_PRECONDITION: an instruction set that
// this machine lacks. RESOURCE_EXHAUSTED: no memory for the threads' scratch.
absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend(const CpuOptions& options);

}  // namespace shoal::kernels
