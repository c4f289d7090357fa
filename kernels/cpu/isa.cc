#include "kernels/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace shoal::kernels {
namespace {

// (clang 14 does not know "f16c" in __builtin_cpu_supports.)
bool HasF16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// A process must ask for the tile registers before any of its threads uses them; Linux grants them
// where CPU and kernel have them. (Documentation/arch/x86/xstate.rst)
bool AmxGranted() {
  static const bool granted = [] {
    constexpr long kRequestFeature = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long kTileData = 18;            // XFEATURE_XTILEDATA
    constexpr unsigned kTileBit = 1u << 24;
    constexpr unsigned kInt8Bit = 1u << 25;
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kTileBit) != 0 &&
           (edx & kInt8Bit) != 0 && syscall(SYS_arch_prctl, kRequestFeature, kTileData) == 0;
  }();
  return granted;
}

}  // namespace

absl::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

bool IsaSupported(Isa isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vnni");
    case Isa::kAmx:
      return IsaSupported(Isa::kAvx512) && AmxGranted();
  }
  return false;
}

Isa BestIsa() { return SupportedIsas().back(); }

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> supported;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (IsaSupported(isa)) {
      supported.push_back(isa);
    }
  }
  return supported;
}

}  // namespace shoal::kernels
