// Leaves of the product: one or several tiles times one panel of rows over a range of K, for every
// weight kind. Contract and order: MatMulArgs in kernels/ops.h; layout of weights: packed_layout.h.
// Each instruction set brings, in dot.inc.h:
//
//   DotVec, kDotLanes            a vector of 16 (AVX-512, portable) or 8 (AVX2) outputs
//   Weights                      one decoded block: 32 columns of kDotLanes outputs
//   DecodeNibbles, DecodeBytes   from the packed bytes of the block (first byte of these outputs)
//   DotRows<first, last, n>      start + the exact integer dot product over column groups
//                                [first, last) of four, for n rows of activations (32 bytes apart)
//   kSideBySide                  the n it likes
//   kMaxPanelRows, kMaxFloatPanelRows, kFewRowTiles, kFloatTiles, kMaxTileRows: register tiles

enum class Scale { kF16, kF32, kF32x2 };
enum class Offset { kNone, kF16, kF32 };

template <bool kNibblesV, Scale kScaleV, Offset kOffsetV>
struct QuantFormat {
  static constexpr bool kNibbles = kNibblesV;
  static constexpr Scale kScale = kScaleV;
  static constexpr Offset kOffset = kOffsetV;
  static constexpr int kBlockBytes = kNibbles ? 256 : 512;
  static constexpr int kScaleBytes = kScale == Scale::kF16 ? 32 : kScale == Scale::kF32 ? 64 : 128;
  static constexpr int kOffsetBytes = kOffset == Offset::kF16 ? 32 : 64;
};

// Operands of one panel of rows. Quantised: q [nb][rows][32], the others [nb][rows].
// Float: x [K][rows].
struct Panel {
  const int8_t* q;
  const float* scale;
  const int32_t* start[2];  // -zero * sum of q, of the block or of its two halves
  const float* scaled_sum;  // scale * sum, for types with an offset
  int64_t q_stride;         // bytes from block to block
  const float* x;
};

// Asks for the kBytes that lie kPrefetchAhead further on, across the end of the tile too (tiles
// follow each other). In assembly, as GCC takes a function that only prefetches for one without
// effect.
inline constexpr int kPrefetchAhead = 4096;
template <int kBytes>
__attribute__((always_inline)) inline void Prefetch(const uint8_t* p) {
  Unroll<(kBytes + 63) / 64>([&](auto i) SHOAL_INLINE {
    const uint8_t* ahead = p + kPrefetchAhead + 64 * i();
    asm volatile("prefetcht0 %0" : : "m"(*ahead));
  });
}

template <Scale kScale>
inline DotVec LoadScale(const uint8_t* d, int lane, int half) {
  if constexpr (kScale == Scale::kF16) {
    return LoadDotHalf(reinterpret_cast<const uint16_t*>(d) + lane);
  } else {
    return LoadDot(reinterpret_cast<const float*>(d) + half * 16 + lane);
  }
}

template <Offset kOffset>
inline DotVec LoadOffset(const uint8_t* m, int lane) {
  if constexpr (kOffset == Offset::kF16) {
    return LoadDotHalf(reinterpret_cast<const uint16_t*>(m) + lane);
  } else {
    return LoadDot(reinterpret_cast<const float*>(m) + lane);
  }
}

// acc[r] = fma(d * scale, dot product over column groups [kFirst, kLast), acc[r]) for kCount rows
// from row kRow of the block on, at `at` in the panel's arrays. Their dot products go side by side,
// as each one is a chain of dependent instructions.
template <int kFirst, int kLast, int kRow, int kCount>
__attribute__((always_inline)) inline void AddDots(const Weights& w, DotVec d, const int8_t* q,
                                                   const int32_t* start, const float* scale,
                                                   DotVec* acc) {
  DotVec dots[kCount];
  DotRows<kFirst, kLast, kCount>(w, q + kRow * 32, start + kRow, dots);
  Unroll<kCount>([&](auto i) SHOAL_INLINE {
    constexpr int kAt = kRow + i();
    acc[kAt] = FmaDot(MulDot(d, SetDot(scale[kAt])), dots[i()], acc[kAt]);
  });
}

// One decoded block against the panel's rows, in the order of MatMulArgs.
template <class Format, int kRows>
__attribute__((always_inline)) inline void BlockTimesRows(const Weights& w, const uint8_t* d,
                                                          const uint8_t* m, int lane,
                                                          const Panel& panel, int64_t block,
                                                          DotVec* acc) {
  constexpr int kGroups = (kRows + kSideBySide - 1) / kSideBySide;
  const int8_t* q = panel.q + block * panel.q_stride;
  const int64_t at = block * kRows;
  const float* scale = panel.scale + at;
  const DotVec d0 = LoadScale<Format::kScale>(d, lane, 0);
  Unroll<kGroups>([&](auto group) SHOAL_INLINE {
    constexpr int kRow = group() * kSideBySide;
    constexpr int kCount = kRows - kRow < kSideBySide ? kRows - kRow : kSideBySide;
    if constexpr (Format::kScale == Scale::kF32x2) {
      const DotVec d1 = LoadScale<Format::kScale>(d, lane, 1);
      AddDots<0, 4, kRow, kCount>(w, d0, q, panel.start[0] + at, scale, acc);
      AddDots<4, 8, kRow, kCount>(w, d1, q, panel.start[1] + at, scale, acc);
    } else {
      AddDots<0, 8, kRow, kCount>(w, d0, q, panel.start[0] + at, scale, acc);
    }
  });
  if constexpr (Format::kOffset != Offset::kNone) {
    const DotVec offset = LoadOffset<Format::kOffset>(m, lane);
    Unroll<kRows>([&](auto r) SHOAL_INLINE {
      acc[r()] = FmaDot(offset, SetDot(panel.scaled_sum[at + r()]), acc[r()]);
    });
  }
}

// Blocks [begin, end) of kTiles tiles from `tile` on: out [kTiles][kRows][16].
template <class Format, int kTiles, int kRows>
void QuantLeaf(const cpu::CpuWeight& weight, const uint8_t* tile, const Panel& panel, int64_t begin,
               int64_t end, float* out) {
  for (int lane = 0; lane < 16; lane += kDotLanes) {
    DotVec acc[kTiles][kRows];
    Unroll<kTiles>([&](auto t) SHOAL_INLINE {
      Unroll<kRows>([&](auto r) SHOAL_INLINE { acc[t()][r()] = SetDot(0.0f); });
    });
    for (int64_t block = begin; block < end; ++block) {
      Unroll<kTiles>([&](auto t) SHOAL_INLINE {
        const uint8_t* at = tile + t() * weight.tile_bytes;
        const uint8_t* q = at + block * Format::kBlockBytes + lane * 4;
        const uint8_t* d = at + weight.d_offset + block * Format::kScaleBytes;
        const uint8_t* m = at + weight.m_offset + block * Format::kOffsetBytes;
        Prefetch<Format::kBlockBytes>(q);
        Weights w;
        if constexpr (Format::kNibbles) {
          DecodeNibbles(q, &w);
        } else {
          DecodeBytes(q, &w);
        }
        BlockTimesRows<Format, kRows>(w, d, m, lane, panel, block, acc[t()]);
      });
    }
    Unroll<kTiles>([&](auto t) SHOAL_INLINE {
      Unroll<kRows>([&](auto r) SHOAL_INLINE {
        StoreDot(out + (t() * kRows + r()) * 16 + lane, acc[t()][r()]);
      });
    });
  }
}

struct LoadF32 {
  static constexpr int kBytes = 4;
  static DotVec Load(const uint8_t* p) { return LoadDot(reinterpret_cast<const float*>(p)); }
};
struct LoadF16 {
  static constexpr int kBytes = 2;
  static DotVec Load(const uint8_t* p) { return LoadDotHalf(reinterpret_cast<const uint16_t*>(p)); }
};
struct LoadBf16 {
  static constexpr int kBytes = 2;
  static DotVec Load(const uint8_t* p) { return LoadDotBf16(reinterpret_cast<const uint16_t*>(p)); }
};

// Columns [begin, end) of kTiles tiles of a float weight.
template <class Format, int kTiles, int kRows>
void FloatLeaf(const cpu::CpuWeight& weight, const uint8_t* tile, const Panel& panel, int64_t begin,
               int64_t end, float* out) {
  for (int lane = 0; lane < 16; lane += kDotLanes) {
    DotVec acc[kTiles][kRows];
    Unroll<kTiles>([&](auto t) SHOAL_INLINE {
      Unroll<kRows>([&](auto r) SHOAL_INLINE { acc[t()][r()] = SetDot(0.0f); });
    });
    for (int64_t k = begin; k < end; ++k) {
      DotVec w[kTiles];
      Unroll<kTiles>([&](auto t) SHOAL_INLINE {
        const uint8_t* at = tile + t() * weight.tile_bytes + (k * 16 + lane) * Format::kBytes;
        Prefetch<16 * Format::kBytes>(at);
        w[t()] = Format::Load(at);
      });
      Unroll<kRows>([&](auto r) SHOAL_INLINE {
        const DotVec x = SetDot(panel.x[k * kRows + r()]);
        Unroll<kTiles>([&](auto t)
                           SHOAL_INLINE { acc[t()][r()] = FmaDot(w[t()], x, acc[t()][r()]); });
      });
    }
    Unroll<kTiles>([&](auto t) SHOAL_INLINE {
      Unroll<kRows>([&](auto r) SHOAL_INLINE {
        StoreDot(out + (t() * kRows + r()) * 16 + lane, acc[t()][r()]);
      });
    });
  }
}

using LeafFunction = void (*)(const cpu::CpuWeight& weight, const uint8_t* tile, const Panel& panel,
                              int64_t begin, int64_t end, float* out);

// The leaf functions of one weight kind for a panel of `rows` rows.
struct LeafKernels {
  LeafFunction one[kMaxPanelRows + 1];   // one tile a call
  LeafFunction many[kMaxPanelRows + 1];  // TilesAtOnce(rows) tiles a call
};
static_assert(kMaxFloatPanelRows <= kMaxPanelRows);

template <bool kFloat>
constexpr int TilesAtOnce(int rows) {
  if (kFloat) {
    return rows == 1 ? kFloatTiles : kFloatTiles > 1 ? 2 : 1;
  }
  return rows == 1 ? kFewRowTiles : rows <= 4 ? (kFewRowTiles + 1) / 2 : 1;
}

template <class Format, bool kFloat, int kTiles, int kRows>
constexpr LeafFunction LeafOf() {
  if constexpr (kFloat) {
    return FloatLeaf<Format, kTiles, kRows>;
  } else {
    return QuantLeaf<Format, kTiles, kRows>;
  }
}

template <class Format, bool kFloat, int... kIndices>
constexpr LeafKernels KernelsOver(std::integer_sequence<int, kIndices...>) {
  return {{nullptr, LeafOf<Format, kFloat, 1, kIndices + 1>()...},
          {nullptr, LeafOf<Format, kFloat, TilesAtOnce<kFloat>(kIndices + 1), kIndices + 1>()...}};
}

template <class Format, bool kFloat>
constexpr LeafKernels KernelsOf() {
  constexpr int kRows = kFloat ? kMaxFloatPanelRows : kMaxPanelRows;
  return KernelsOver<Format, kFloat>(std::make_integer_sequence<int, kRows>{});
}

// Indexed by WeightKind.
constexpr LeafKernels kLeafKernels[cpu::kNumWeightKinds] = {
    KernelsOf<QuantFormat<true, Scale::kF16, Offset::kNone>, false>(),
    KernelsOf<QuantFormat<true, Scale::kF16, Offset::kF16>, false>(),
    KernelsOf<QuantFormat<true, Scale::kF32, Offset::kF32>, false>(),
    KernelsOf<QuantFormat<false, Scale::kF16, Offset::kNone>, false>(),
    KernelsOf<QuantFormat<false, Scale::kF16, Offset::kF16>, false>(),
    KernelsOf<QuantFormat<false, Scale::kF32, Offset::kF32>, false>(),
    KernelsOf<QuantFormat<false, Scale::kF32x2, Offset::kNone>, false>(),
    KernelsOf<LoadF32, true>(),
    KernelsOf<LoadF16, true>(),
    KernelsOf<LoadBf16, true>(),
};
