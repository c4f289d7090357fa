// Leaves of the product: one or several tiles times one panel of rows over a range of K, for every
// weight kind. Contract and order: MatMulArgs in kernels/ops.h; layout of weights: packed_layout.h.
// Each instruction set brings, in dot.inc.h:
//
//   DotVec, kDotLanes            a vector of 16 (AVX-512, portable) or 8 (AVX2) outputs
//   Weights                      one decoded block: 32 columns of kDotLanes outputs
//   Decode<bits>                 from the codes of a record (first byte of these outputs)
//   DotRows<bits, first, last, n>  start + the exact integer dot product over column groups
//                                [first, last) of four, for n rows of activations (32 bytes apart)
//   kSideBySide                  the n it likes
//   kMaxPanelRows, kMaxFloatPanelRows, kFewRowTiles, kFloatTiles, kMaxTileRows: register tiles

inline bool IsFloat(const cpu::CpuWeight& weight) { return weight.kind >= cpu::WeightKind::kF32; }

enum class Scales {
  kHalf,         // d f16
  kHalfOffset,   // d, m f16
  kSuperOffset,  // sc, mn u8; of 256 columns: d, -dmin f16
  kSuperHalves,  // sc of each 16 columns i8; of 256 columns: d f16
};

template <int kBitsV, Scales kScalesV>
struct QuantFormat {
  static constexpr int kBits = kBitsV;  // of a code
  static constexpr Scales kScales = kScalesV;
  static constexpr int kCodeBytes = kBits * 64;
  static constexpr int kRecordBytes = kCodeBytes + (kScales == Scales::kHalfOffset ? 64 : 32);
  static constexpr int kSuperBytes = kScales == Scales::kSuperOffset   ? 64
                                     : kScales == Scales::kSuperHalves ? 32
                                                                       : 0;
  static constexpr bool kHalves = kScales == Scales::kSuperHalves;
  static constexpr bool kOffset = kScales == Scales::kHalfOffset || kScales == Scales::kSuperOffset;
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
  bool first;  // of those that are multiplied with the same tiles
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

// The factors of one block of kDotLanes outputs.
struct BlockScales {
  DotVec d[2];  // of the block, or of its halves
  DotVec m;     // for types with an offset
};

template <class Format>
__attribute__((always_inline)) inline BlockScales LoadScales(const uint8_t* scales,
                                                             const uint8_t* super_scales,
                                                             int lane) {
  const auto half = [lane](const uint8_t* p) SHOAL_INLINE {
    return LoadDotHalf(reinterpret_cast<const uint16_t*>(p) + lane);
  };
  BlockScales result;
  if constexpr (Format::kScales == Scales::kSuperOffset) {
    result.d[0] = MulDot(half(super_scales), LoadDotU8(scales + lane));
    result.m = MulDot(half(super_scales + 32), LoadDotU8(scales + 16 + lane));
  } else if constexpr (Format::kScales == Scales::kSuperHalves) {
    const DotVec d = half(super_scales);
    result.d[0] = MulDot(d, LoadDotI8(scales + lane));
    result.d[1] = MulDot(d, LoadDotI8(scales + 16 + lane));
  } else {
    result.d[0] = half(scales);
    if constexpr (Format::kOffset) {
      result.m = half(scales + 32);
    }
  }
  return result;
}

// acc[r] = fma(d * scale, dot product over column groups [kFirst, kLast), acc[r]) for kCount rows
// from row kRow of the block on, at `at` in the panel's arrays. Their dot products go side by side,
// as each one is a chain of dependent instructions.
template <class Format, int kFirst, int kLast, int kRow, int kCount>
__attribute__((always_inline)) inline void AddDots(const Weights& w, DotVec d, const int8_t* q,
                                                   const int32_t* start, const float* scale,
                                                   DotVec* acc) {
  DotVec dots[kCount];
  DotRows<Format::kBits, kFirst, kLast, kCount>(w, q + kRow * 32, start + kRow, dots);
  Unroll<kCount>([&](auto i) SHOAL_INLINE {
    constexpr int kAt = kRow + i();
    acc[kAt] = FmaDot(MulDot(d, SetDot(scale[kAt])), dots[i()], acc[kAt]);
  });
}

// One decoded block against the panel's rows, in the order of MatMulArgs.
template <class Format, int kRows>
__attribute__((always_inline)) inline void BlockTimesRows(const Weights& w,
                                                          const BlockScales& scales,
                                                          const Panel& panel, int64_t block,
                                                          DotVec* acc) {
  constexpr int kGroups = (kRows + kSideBySide - 1) / kSideBySide;
  const int8_t* q = panel.q + block * panel.q_stride;
  const int64_t at = block * kRows;
  const float* scale = panel.scale + at;
  Unroll<kGroups>([&](auto group) SHOAL_INLINE {
    constexpr int kRow = group() * kSideBySide;
    constexpr int kCount = kRows - kRow < kSideBySide ? kRows - kRow : kSideBySide;
    if constexpr (Format::kHalves) {
      AddDots<Format, 0, 4, kRow, kCount>(w, scales.d[0], q, panel.start[0] + at, scale, acc);
      AddDots<Format, 4, 8, kRow, kCount>(w, scales.d[1], q, panel.start[1] + at, scale, acc);
    } else {
      AddDots<Format, 0, 8, kRow, kCount>(w, scales.d[0], q, panel.start[0] + at, scale, acc);
    }
  });
  if constexpr (Format::kOffset) {
    Unroll<kRows>([&](auto r) SHOAL_INLINE {
      acc[r()] = FmaDot(scales.m, SetDot(panel.scaled_sum[at + r()]), acc[r()]);
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
      const int64_t super_at =
          weight.super_offset + (weight.super_phase + block) / 8 * Format::kSuperBytes;
      Unroll<kTiles>([&](auto t) SHOAL_INLINE {
        const uint8_t* at = tile + t() * weight.tile_bytes;
        const uint8_t* record = at + block * Format::kRecordBytes;
        Prefetch<Format::kRecordBytes>(record);
        Weights w;
        Decode<Format::kBits>(record + lane * 4, &w);
        const BlockScales scales =
            LoadScales<Format>(record + Format::kCodeBytes, at + super_at, lane);
        BlockTimesRows<Format, kRows>(w, scales, panel, block, acc[t()]);
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

// The leaf for kRows rows of a quantised weight; an instruction set may specialise it.
template <class Format, int kTiles, int kRows>
struct QuantLeafChoice {
  static constexpr LeafFunction kFunction = QuantLeaf<Format, kTiles, kRows>;
};
