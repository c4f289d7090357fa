// Leaves of many rows: the exact integer dot products of a block come from tile registers, scales
// and sums are those of leaf.inc.h, in the same order.

// Unpacks the codes of a record to signed bytes, eight vectors of 64.
template <class Format>
__attribute__((always_inline)) inline void DecodeSigned(const uint8_t* record, __m512i zero,
                                                        uint8_t* to) {
  Weights w;
  Decode<Format::kBits>(record, &w);
  Unroll<8>([&](auto g) SHOAL_INLINE {
    _mm512_store_si512(to + 64 * g(), _mm512_sub_epi8(w.group[g()], zero));
  });
}

// sums [kRows][16] = the dot products of the activations at q (32 bytes from row to row) and
// unpacked weights, over a block.
template <int kSlot>
__attribute__((always_inline)) inline void DotTiles(const int8_t* q, const uint8_t* weights,
                                                    int32_t* sums) {
  TileZero<kSumTile<kSlot>>();
  TileLoad<kActivationTile<kSlot>>(q, 32);
  TileLoad<kWeightTile<kSlot>>(weights, 64);
  TileDot<kSumTile<kSlot>, kActivationTile<kSlot>, kWeightTile<kSlot>>();
  TileStore<kSumTile<kSlot>>(sums, 64);
}

template <int kRows>
__attribute__((always_inline)) inline void AddSums(const int32_t* sums, __m512 d,
                                                   const float* scale, __m512* acc) {
  Unroll<kRows>([&](auto r) SHOAL_INLINE {
    const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(sums + r() * 16));
    acc[r()] = FmaDot(MulDot(d, SetDot(scale[r()])), dot, acc[r()]);
  });
}

// acc[r] += the scaled dot products of one block, in the order of MatMulArgs.
template <class Format, int kRows>
__attribute__((always_inline)) inline void AddBlock(const uint8_t* record,
                                                    const uint8_t* super_scales, const Panel& panel,
                                                    int64_t block, const int32_t* sums,
                                                    __m512* acc) {
  const BlockScales scales = LoadScales<Format>(record + Format::kCodeBytes, super_scales, 0);
  const float* scale = panel.scale + block * kRows;
  AddSums<kRows>(sums, scales.d[0], scale, acc);
  if constexpr (Format::kOffset) {
    const float* scaled_sum = panel.scaled_sum + block * kRows;
    Unroll<kRows>([&](auto r) SHOAL_INLINE {
      acc[r()] = FmaDot(scales.m, SetDot(scaled_sum[r()]), acc[r()]);
    });
  }
}

// Blocks [begin, end) of one tile: out [kRows][16]. Three stages run at once on different blocks,
// as it takes a while until what one stage stored can be loaded by the next: unpacking, then
// kLead blocks later the dot products, then kLag blocks later the sums.
template <class Format, int kRows>
void TileLeaf(const cpu::CpuWeight& weight, const uint8_t* tile, const Panel& panel, int64_t begin,
              int64_t end, float* out) {
  constexpr int kLead = 2;
  constexpr int kLag = 4;
  constexpr int kRing = 8;
  static_assert(kRing >= kLead + kTileSlots && kRing >= kLag + kTileSlots);
  alignas(64) uint8_t codes[kRing][512];
  alignas(64) int32_t sums[kRing][16 * 16];
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(weight.zero));
  const auto unpack = [&](int64_t block) SHOAL_INLINE {
    if (block < end) {
      const uint8_t* record = tile + block * Format::kRecordBytes;
      if (panel.first) {
        Prefetch<Format::kRecordBytes>(record);
      }
      DecodeSigned<Format>(record, zero, codes[block % kRing]);
    }
  };
  DotVec acc[kRows];
  Unroll<kRows>([&](auto r) SHOAL_INLINE { acc[r()] = SetDot(0.0f); });
  Unroll<kLead>([&](auto i) SHOAL_INLINE { unpack(begin + i()); });
  for (int64_t at = begin; at < end + kLag; at += kTileSlots) {
    Unroll<kTileSlots>([&](auto i) SHOAL_INLINE { unpack(at + kLead + i()); });
    Unroll<kTileSlots>([&](auto i) SHOAL_INLINE {
      const int64_t block = at + i();
      if (block < end) {
        const int8_t* q = panel.q + block * panel.q_stride;
        DotTiles<i()>(q, codes[block % kRing], sums[block % kRing]);
      }
    });
    Unroll<kTileSlots>([&](auto i) SHOAL_INLINE {
      const int64_t block = at - kLag + i();
      if (block >= begin && block < end) {
        AddBlock<Format, kRows>(
            tile + block * Format::kRecordBytes,
            tile + weight.super_offset + (weight.super_phase + block) / 8 * Format::kSuperBytes,
            panel, block, sums[block % kRing], acc);
      }
    });
  }
  Unroll<kRows>([&](auto r) SHOAL_INLINE { StoreDot(out + r() * 16, acc[r()]); });
}

// (Two scales a block would take two sets of sums: AVX-512 does those as fast.)
template <class Format, int kRows>
requires(kRows >= kMinTileRows && !Format::kHalves) struct QuantLeafChoice<Format, 1, kRows> {
  static constexpr LeafFunction kFunction = TileLeaf<Format, kRows>;
};
