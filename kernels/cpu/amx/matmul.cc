// The product, for AVX-512 with AMX (tile, int8): few rows as on AVX-512, many through tiles.

#ifndef __clang__  // GCC 12's own AVX-512 header starts undefined vectors from themselves
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstring>
#include <utility>

#include "kernels/cpu/isa_table.h"
#include "kernels/cpu/packed_layout.h"
#include "kernels/ops.h"

#define SHOAL_INLINE __attribute__((always_inline))

namespace shoal::kernels::amx {
namespace {

// Each of these uses the ones before it.
// clang-format off
#include "kernels/cpu/unroll.inc.h"
#include "kernels/cpu/avx512/lanes.inc.h"
#include "kernels/cpu/avx512/dot.inc.h"
#include "kernels/cpu/leaf.inc.h"
#include "kernels/cpu/amx/tiles.inc.h"
#include "kernels/cpu/amx/tile_leaf.inc.h"
#include "kernels/cpu/leaf_table.inc.h"
#include "kernels/cpu/panels.inc.h"
#include "kernels/cpu/matmul.inc.h"
// clang-format on

}  // namespace

void MatMul(const MatMulArgs& args, int64_t tile_begin, int64_t tile_end, cpu::Scratch scratch) {
  MatMulSlice<TileSetUp>(args, tile_begin, tile_end, scratch);
}

}  // namespace shoal::kernels::amx
