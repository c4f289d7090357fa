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
inline void StoreDot(float* p, DotVec v) { _mm256_storeu_ps(p, v); }
inline DotVec MulDot(DotVec a, DotVec b) { return _mm256_mul_ps(a, b); }
inline DotVec FmaDot(DotVec a, DotVec b, DotVec c) { return _mm256_fmadd_ps(a, b, c); }

struct Weights {
  __m256i group[8];  // columns 4g .. 4g + 3 of 8 outputs, unsigned
  bool nibbles;
};

inline void DecodeNibbles(const uint8_t* q, Weights* w) {
  const __m256i mask = _mm256_set1_epi8(15);
  Unroll<4>([&](auto g) SHOAL_INLINE {
    const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(q + 64 * g()));
    w->group[g()] = _mm256_and_si256(both, mask);
    w->group[g() + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
  });
  w->nibbles = true;
}

inline void DecodeBytes(const uint8_t* q, Weights* w) {
  Unroll<8>([&](auto g) SHOAL_INLINE {
    w->group[g()] = _mm256_load_si256(reinterpret_cast<const __m256i*>(q + 64 * g()));
  });
  w->nibbles = false;
}

inline __m256i BroadcastFour(const int8_t* a) {
  int32_t four;
  memcpy(&four, a, 4);
  return _mm256_set1_epi32(four);
}

// vpmaddubsw adds pairs of products in 16 saturating bits. Four-bit weights cannot saturate, not
// even the sum of eight (8 * 2 * 15 * 127 = 30480). Eight-bit ones can, so their top bit goes
// separately: 2 * 127 * 127 = 32258 for the lower seven bits, 8 * 2 * 127 = 2032 for the sum of top
// bits.
template <int kFirst, int kLast>
inline DotVec DotBlock(const Weights& w, const int8_t* a, int32_t start) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = _mm256_set1_epi32(start);
  if (w.nibbles) {
    __m256i pairs = _mm256_setzero_si256();
    Unroll<kLast - kFirst>([&](auto g) SHOAL_INLINE {
      const __m256i four = BroadcastFour(a + 4 * (kFirst + g()));
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w.group[kFirst + g()], four));
    });
    return _mm256_cvtepi32_ps(_mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones)));
  }
  __m256i top_pairs = _mm256_setzero_si256();
  Unroll<kLast - kFirst>([&](auto g) SHOAL_INLINE {
    const __m256i four = BroadcastFour(a + 4 * (kFirst + g()));
    const __m256i q = w.group[kFirst + g()];
    const __m256i low = _mm256_and_si256(q, _mm256_set1_epi8(0x7f));
    const __m256i top = _mm256_and_si256(_mm256_srli_epi16(q, 7), _mm256_set1_epi8(1));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(low, four), ones));
    top_pairs = _mm256_add_epi16(top_pairs, _mm256_maddubs_epi16(top, four));
  });
  const __m256i tops = _mm256_madd_epi16(top_pairs, _mm256_set1_epi16(128));
  return _mm256_cvtepi32_ps(_mm256_add_epi32(sum, tops));
}

template <int kFirst, int kLast, int kCount>
inline void DotRows(const Weights& w, const int8_t* q, const int32_t* start, DotVec* dots) {
  static_assert(kCount == 1);
  dots[0] = DotBlock<kFirst, kLast>(w, q, start[0]);
}
