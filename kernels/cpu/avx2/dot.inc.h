// What leaf.inc.h needs of AVX2: 8 outputs at a time.

using DotVec = __m256;
inline constexpr int kDotLanes = 8;
inline constexpr int kMaxPanelRows = 4;
inline constexpr int kMaxFloatPanelRows = 4;
inline constexpr int kFewRowTiles = 2;
inline constexpr int kFloatTiles = 4;
inline constexpr int kSideBySide = 1;
inline constexpr int kMaxTileRows = 8;

inline DotVec SetDot(float x) { return _mm256_set1_ps(x); }
inline DotVec LoadDot(const float* p) { return _mm256_loadu_ps(p); }
inline DotVec LoadDotHalf(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline DotVec LoadDotBf16(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline DotVec LoadDotU8(const uint8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
inline DotVec LoadDotI8(const uint8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
inline void StoreDot(float* p, DotVec v) { _mm256_storeu_ps(p, v); }
inline DotVec MulDot(DotVec a, DotVec b) { return _mm256_mul_ps(a, b); }
inline DotVec FmaDot(DotVec a, DotVec b, DotVec c) { return _mm256_fmadd_ps(a, b, c); }

struct Weights {
  __m256i group[8];  // columns 4g .. 4g + 3 of 8 outputs, unsigned; 8 bits: |code - 128|
  __m256i code[8];   // 8 bits only: code - 128
};

inline __m256i LoadCodes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// v | bits `mask` of high, which is shifted left by kShift bits (right, if negative).
template <int kShift>
inline __m256i OrShifted(__m256i v, __m256i high, __m256i mask) {
  if constexpr (kShift > 0) {
    high = _mm256_slli_epi16(high, kShift);
  } else if constexpr (kShift < 0) {
    high = _mm256_srli_epi16(high, -kShift);
  }
  return _mm256_or_si256(v, _mm256_and_si256(high, mask));
}

template <int kBits>
__attribute__((always_inline)) inline void Decode(const uint8_t* codes, Weights* w) {
  if constexpr (kBits == 8) {
    Unroll<8>([&](auto g) SHOAL_INLINE {
      w->code[g()] =
          _mm256_xor_si256(LoadCodes(codes + 64 * g()), _mm256_set1_epi8(static_cast<char>(0x80)));
      w->group[g()] = _mm256_abs_epi8(w->code[g()]);
    });
    return;
  }
  const __m256i low_mask = _mm256_set1_epi8(15);
  Unroll<4>([&](auto g) SHOAL_INLINE {
    const __m256i both = LoadCodes(codes + 64 * g());
    w->group[g()] = _mm256_and_si256(both, low_mask);
    w->group[g() + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_mask);
  });
  if constexpr (kBits == 5) {
    const __m256i mask = _mm256_set1_epi8(0x10);
    const __m256i high = LoadCodes(codes + 256);
    Unroll<8>([&](auto g)
                  SHOAL_INLINE { w->group[g()] = OrShifted<4 - g()>(w->group[g()], high, mask); });
  } else if constexpr (kBits == 6) {
    const __m256i mask = _mm256_set1_epi8(0x30);
    Unroll<8>([&](auto g) SHOAL_INLINE {
      const __m256i high = LoadCodes(codes + 256 + 64 * (g() / 4));
      w->group[g()] = OrShifted<4 - 2 * (g() % 4)>(w->group[g()], high, mask);
    });
  }
}

inline __m256i BroadcastFour(const int8_t* a) {
  int32_t four;
  memcpy(&four, a, 4);
  return _mm256_set1_epi32(four);
}

// vpmaddubsw adds pairs of products in 16 saturating bits, so it depends on the width of the codes
// how many such sums fit together:
//   4 bits  eight sums  8 * 2 * 15 * 127 = 30480
//   5 bits  four        4 * 2 * 31 * 127 = 31496
//   6 bits  two         2 * 2 * 63 * 127 = 32004
//   8 bits  one, of magnitudes times activations that got the codes' signs: 2 * 128 * 127 = 32512
// (`start` is not needed for 8 bits: the signed codes are code - zero already.)
template <int kBits, int kFirst, int kLast>
__attribute__((always_inline)) inline DotVec DotBlock(const Weights& w, const int8_t* a,
                                                      int32_t start) {
  constexpr int kTogether = kBits == 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
  constexpr int kRun = kTogether < kLast - kFirst ? kTogether : kLast - kFirst;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = _mm256_set1_epi32(kBits == 8 ? 0 : start);
  Unroll<(kLast - kFirst) / kRun>([&](auto run) SHOAL_INLINE {
    __m256i pairs = _mm256_setzero_si256();
    Unroll<kRun>([&](auto i) SHOAL_INLINE {
      constexpr int kGroup = kFirst + run() * kRun + i();
      __m256i four = BroadcastFour(a + 4 * kGroup);
      if constexpr (kBits == 8) {
        four = _mm256_sign_epi8(four, w.code[kGroup]);
      }
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w.group[kGroup], four));
    });
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
  });
  return _mm256_cvtepi32_ps(sum);
}

template <int kBits, int kFirst, int kLast, int kCount>
inline void DotRows(const Weights& w, const int8_t* q, const int32_t* start, DotVec* dots) {
  static_assert(kCount == 1);
  dots[0] = DotBlock<kBits, kFirst, kLast>(w, q, start[0]);
}
