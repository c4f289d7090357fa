#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace shoal::kernels {

// Instruction sets the CPU kernels are built for. All give equal bits.
enum class Isa {
  kPortable,  // any x86-64
  kAvx2,      // AVX2, FMA, F16C
  kAvx512,    // AVX-512 F, BW, VL, DQ, VNNI
  kAmx,       // AVX-512 as above, and AMX tile, int8 for products of many rows
};

absl::string_view IsaName(Isa isa);

// Whether this machine (CPU and operating system) runs it. The first call asks Linux to let this
// process use AMX.
bool IsaSupported(Isa isa);

// The fastest one supported.
Isa BestIsa();

// All that are supported, slowest first.
std::vector<Isa> SupportedIsas();

}  // namespace shoal::kernels
