// What leaf.inc.h needs of AVX-512 with VNNI.

using DotVec = __m512;
inline constexpr int kDotLanes = 16;
inline constexpr int kMaxPanelRows = 16;
inline constexpr int kMaxFloatPanelRows = 12;
inline constexpr int kFewRowTiles = 4;  // tiles at once for one row; half as many for 2 to 4
inline constexpr int kFloatTiles = 8;   // tiles at once for one row of a float weight
inline constexpr int kSideBySide = 8;
inline constexpr int kMaxTileRows = 24;  // most tiles x rows of a call

inline DotVec SetDot(float x) { return _mm512_set1_ps(x); }
inline DotVec LoadDot(const float* p) { return _mm512_loadu_ps(p); }
inline DotVec LoadDotHalf(const uint16_t* p) { return LoadHalf(p); }
inline DotVec LoadDotBf16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline DotVec LoadDotU8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}
inline DotVec LoadDotI8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
inline void StoreDot(float* p, DotVec v) { _mm512_storeu_ps(p, v); }
inline DotVec MulDot(DotVec a, DotVec b) { return _mm512_mul_ps(a, b); }
inline DotVec FmaDot(DotVec a, DotVec b, DotVec c) { return _mm512_fmadd_ps(a, b, c); }

struct Weights {
  __m512i group[8];  // columns 4g .. 4g + 3 of the 16 outputs, unsigned
};

inline __m512i LoadCodes(const uint8_t* p) { return _mm512_loadu_si512(p); }

// v | bits `mask` of high, which is shifted left by kShift bits (right, if negative).
template <int kShift>
inline __m512i OrShifted(__m512i v, __m512i high, __m512i mask) {
  if constexpr (kShift > 0) {
    high = _mm512_slli_epi16(high, kShift);
  } else if constexpr (kShift < 0) {
    high = _mm512_srli_epi16(high, -kShift);
  }
  return _mm512_ternarylogic_epi32(v, high, mask, 0xf8);  // v | (high & mask)
}

template <int kBits>
__attribute__((always_inline)) inline void Decode(const uint8_t* codes, Weights* w) {
  if constexpr (kBits == 8) {
    Unroll<8>([&](auto g) SHOAL_INLINE { w->group[g()] = LoadCodes(codes + 64 * g()); });
    return;
  }
  const __m512i low_mask = _mm512_set1_epi8(15);
  Unroll<4>([&](auto g) SHOAL_INLINE {
    const __m512i both = LoadCodes(codes + 64 * g());
    w->group[g()] = _mm512_and_si512(both, low_mask);
    w->group[g() + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_mask);
  });
  if constexpr (kBits == 5) {
    const __m512i mask = _mm512_set1_epi8(0x10);
    const __m512i high = LoadCodes(codes + 256);
    Unroll<8>([&](auto g)
                  SHOAL_INLINE { w->group[g()] = OrShifted<4 - g()>(w->group[g()], high, mask); });
  } else if constexpr (kBits == 6) {
    const __m512i mask = _mm512_set1_epi8(0x30);
    Unroll<8>([&](auto g) SHOAL_INLINE {
      const __m512i high = LoadCodes(codes + 256 + 64 * (g() / 4));
      w->group[g()] = OrShifted<4 - 2 * (g() % 4)>(w->group[g()], high, mask);
    });
  }
}

template <int kBits, int kFirst, int kLast, int kCount>
__attribute__((always_inline)) inline void DotRows(const Weights& w, const int8_t* q,
                                                   const int32_t* start, DotVec* dots) {
  __m512i sums[kCount];
  Unroll<kCount>([&](auto i) SHOAL_INLINE { sums[i()] = _mm512_set1_epi32(start[i()]); });
  Unroll<kLast - kFirst>([&](auto g) SHOAL_INLINE {
    Unroll<kCount>([&](auto i) SHOAL_INLINE {
      int32_t four;
      memcpy(&four, q + i() * 32 + 4 * (kFirst + g()), 4);
      sums[i()] = _mm512_dpbusd_epi32(sums[i()], w.group[kFirst + g()], _mm512_set1_epi32(four));
    });
  });
  Unroll<kCount>([&](auto i) SHOAL_INLINE { dots[i()] = _mm512_cvtepi32_ps(sums[i()]); });
}
