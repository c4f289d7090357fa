// The product, for plain x86-64.

#include <cstring>
#include <utility>

#include "kernels/cpu/isa_table.h"
#include "kernels/cpu/packed_layout.h"
#include "kernels/ops.h"

#define SHOAL_INLINE __attribute__((always_inline))

namespace shoal::kernels::portable {
namespace {

// Each of these uses the ones before it.
// clang-format off
#include "kernels/cpu/unroll.inc.h"
#include "kernels/cpu/portable/lanes.inc.h"
#include "kernels/cpu/portable/dot.inc.h"
#include "kernels/cpu/leaf.inc.h"
#include "kernels/cpu/leaf_table.inc.h"
#include "kernels/cpu/panels.inc.h"
#include "kernels/cpu/matmul.inc.h"
// clang-format on

}  // namespace

void MatMul(const MatMulArgs& args, int64_t tile_begin, int64_t tile_end, cpu::Scratch scratch) {
  MatMulSlice<NoSetUp>(args, tile_begin, tile_end, scratch);
}

}  // namespace shoal::kernels::portable
