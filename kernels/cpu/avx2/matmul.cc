// The product, for AVX2, FMA and F16C.

#include <immintrin.h>

#include <cstring>
#include <utility>

#include "kernels/cpu/isa_table.h"
#include "kernels/cpu/packed_layout.h"
#include "kernels/ops.h"

#define SHOAL_INLINE __attribute__((always_inline))

namespace shoal::kernels::avx2 {
namespace {

// Each of these uses the ones before it.
// clang-format off
#include "kernels/cpu/unroll.inc.h"
#include "kernels/cpu/avx2/lanes.inc.h"
#include "kernels/cpu/avx2/dot.inc.h"
#include "kernels/cpu/leaf.inc.h"
#include "kernels/cpu/leaf_table.inc.h"
#include "kernels/cpu/panels.inc.h"
#include "kernels/cpu/matmul.inc.h"
// clang-format on

}  // namespace

void MatMul(const MatMulArgs& args, int64_t tile_begin, int64_t tile_end, cpu::Scratch scratch) {
  MatMulSlice<NoSetUp>(args, tile_begin, tile_end, scratch);
}

}  // namespace shoal::kernels::avx2
