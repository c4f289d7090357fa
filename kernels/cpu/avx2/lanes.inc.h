// The 16 logical lanes as two AVX2 registers, included inside namespace shoal::kernels::avx2
// { namespace {. Contracts: avx512/lanes.inc.h.

struct Vec {
  __m256 low;
  __m256 high;
};

inline Vec Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void Store(float* p, Vec v) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}

// All bits set in lanes < n of eight; n may be anything.
inline __m256i FirstMask8(int64_t n) {
  const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}
inline Vec LoadPartial(const float* p, int64_t n) {
  return {_mm256_maskload_ps(p, FirstMask8(n)), _mm256_maskload_ps(p + 8, FirstMask8(n - 8))};
}
inline void StorePartial(float* p, Vec v, int64_t n) {
  _mm256_maskstore_ps(p, FirstMask8(n), v.low);
  _mm256_maskstore_ps(p + 8, FirstMask8(n - 8), v.high);
}

inline Vec Add(Vec a, Vec b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Vec Sub(Vec a, Vec b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Vec Mul(Vec a, Vec b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Vec Div(Vec a, Vec b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Vec Fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Vec Max(Vec a, Vec b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Vec Abs(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}

inline Vec SelectLess(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
inline Vec FirstLanes(Vec v, int64_t n, Vec rest) {
  return {_mm256_blendv_ps(rest.low, v.low, _mm256_castsi256_ps(FirstMask8(n))),
          _mm256_blendv_ps(rest.high, v.high, _mm256_castsi256_ps(FirstMask8(n - 8)))};
}

inline float ReduceAdd(Vec v) {
  const __m256 sum8 = _mm256_add_ps(v.low, v.high);
  const __m128 sum4 = _mm_add_ps(_mm256_castps256_ps128(sum8), _mm256_extractf128_ps(sum8, 1));
  const __m128 sum2 = _mm_add_ps(sum4, _mm_movehl_ps(sum4, sum4));
  return _mm_cvtss_f32(_mm_add_ss(sum2, _mm_movehdup_ps(sum2)));
}
inline float ReduceMax(Vec v) {
  const __m256 max8 = _mm256_max_ps(v.low, v.high);
  const __m128 max4 = _mm_max_ps(_mm256_castps256_ps128(max8), _mm256_extractf128_ps(max8, 1));
  const __m128 max2 = _mm_max_ps(max4, _mm_movehl_ps(max4, max4));
  return _mm_cvtss_f32(_mm_max_ss(max2, _mm_movehdup_ps(max2)));
}

inline __m256 Pow2FromMagic8(__m256 t) {
  const __m256i biased = _mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline Vec Pow2FromMagic(Vec t) { return {Pow2FromMagic8(t.low), Pow2FromMagic8(t.high)}; }

inline void StoreBytesFromMagic(int8_t* p, Vec t) {
  // The low byte of each lane to the first four bytes of each 128-bit half, then those together.
  const __m256i pick = _mm256_set_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 12, 8, 4, 0,
                                       -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 12, 8, 4, 0);
  const __m256i order = _mm256_set_epi32(7, 6, 5, 3, 2, 1, 4, 0);
  const __m256i low =
      _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(_mm256_castps_si256(t.low), pick), order);
  const __m256i high =
      _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(_mm256_castps_si256(t.high), pick), order);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(low));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p + 8), _mm256_castsi256_si128(high));
}

inline Vec LoadHalf(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline Vec LoadHalfPartial(const uint16_t* p, int64_t n) {
  alignas(32) uint16_t padded[16] = {};
  for (int64_t i = 0; i < n; ++i) {
    padded[i] = p[i];
  }
  return LoadHalf(padded);
}
inline void StoreHalf(uint16_t* p, Vec v) {
  constexpr int kRounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.low, kRounding));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.high, kRounding));
}

inline Vec DuplicateEven(Vec v) { return {_mm256_moveldup_ps(v.low), _mm256_moveldup_ps(v.high)}; }
inline Vec DuplicateOdd(Vec v) { return {_mm256_movehdup_ps(v.low), _mm256_movehdup_ps(v.high)}; }
inline Vec SwapPairs(Vec v) {
  return {_mm256_permute_ps(v.low, 0xb1), _mm256_permute_ps(v.high, 0xb1)};
}
inline Vec NegateEven(Vec v) {
  const __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000));
  return {_mm256_xor_ps(v.low, sign), _mm256_xor_ps(v.high, sign)};
}

// 16 floats to their 8 even (low half of the result) and 8 odd elements.
inline void Deinterleave8(const float* p, __m256* even, __m256* odd) {
  const __m256 a = _mm256_loadu_ps(p);
  const __m256 b = _mm256_loadu_ps(p + 8);
  const __m256d e = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
  const __m256d o = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
  *even = _mm256_castpd_ps(_mm256_permute4x64_pd(e, 0xd8));
  *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(o, 0xd8));
}
inline void Deinterleave(const float* p, Vec* even, Vec* odd) {
  Deinterleave8(p, &even->low, &odd->low);
  Deinterleave8(p + 16, &even->high, &odd->high);
}
