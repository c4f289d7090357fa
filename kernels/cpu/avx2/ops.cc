// Every op but the product, for AVX2, FMA and F16C.

#include "kernels/ops.h"

#include <immintrin.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/isa_table.h"
#include "kernels/cpu/packed_layout.h"

#define SHOAL_INLINE __attribute__((always_inline))

namespace shoal::kernels::avx2 {
namespace {

// Each of these uses the ones before it.
// clang-format off
#include "kernels/cpu/unroll.inc.h"
#include "kernels/cpu/avx2/lanes.inc.h"
#include "kernels/cpu/exp.inc.h"
#include "kernels/cpu/rows.inc.h"
#include "kernels/cpu/elementwise.inc.h"
#include "kernels/cpu/avx2/kv.inc.h"
#include "kernels/cpu/kv_pages.inc.h"
#include "kernels/cpu/attention_tile.inc.h"
#include "kernels/cpu/attention.inc.h"
// clang-format on

}  // namespace

const cpu::IsaTable kTable = {"cpu-avx2", RmsNorm, Quantize,  MatMul,        JoinAdd,
                              Rope,       KvStore, Attention, JoinAttention, SwiGlu};

}  // namespace shoal::kernels::avx2
