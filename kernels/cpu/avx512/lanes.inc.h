// The 16 logical lanes on AVX-512, included inside namespace shoal::kernels::avx512 { namespace {.
// The contract of each function is the same in portable/lanes.inc.h and avx2/lanes.inc.h.

using Vec = __m512;

inline Vec Zero() { return _mm512_setzero_ps(); }
inline Vec Set1(float x) { return _mm512_set1_ps(x); }
inline Vec Load(const float* p) { return _mm512_loadu_ps(p); }
inline void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline __mmask16 FirstMask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

// Lanes >= n are zero / are not written. REQUIRES: 0 <= n <= 16.
inline Vec LoadPartial(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(FirstMask(n), p); }
inline void StorePartial(float* p, Vec v, int64_t n) { _mm512_mask_storeu_ps(p, FirstMask(n), v); }

inline Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec Sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec Div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
inline Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }              // a > b ? a : b
inline Vec Abs(Vec a) { return _mm512_abs_ps(a); }

// a < b ? x : y, lane by lane.
inline Vec SelectLess(Vec a, Vec b, Vec x, Vec y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

// Lanes < n of v, the others of `rest`. REQUIRES: 0 <= n <= 16.
inline Vec FirstLanes(Vec v, int64_t n, Vec rest) {
  return _mm512_mask_blend_ps(FirstMask(n), rest, v);
}

// The fixed join: lane i += lane i + 8, then + 4, + 2, + 1.
inline float ReduceAdd(Vec v) {
  const __m256 high8 = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
  const __m256 sum8 = _mm256_add_ps(_mm512_castps512_ps256(v), high8);
  const __m128 sum4 = _mm_add_ps(_mm256_castps256_ps128(sum8), _mm256_extractf128_ps(sum8, 1));
  const __m128 sum2 = _mm_add_ps(sum4, _mm_movehl_ps(sum4, sum4));
  return _mm_cvtss_f32(_mm_add_ss(sum2, _mm_movehdup_ps(sum2)));
}

inline float ReduceMax(Vec v) {
  const __m256 high8 = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
  const __m256 max8 = _mm256_max_ps(_mm512_castps512_ps256(v), high8);
  const __m128 max4 = _mm_max_ps(_mm256_castps256_ps128(max8), _mm256_extractf128_ps(max8, 1));
  const __m128 max2 = _mm_max_ps(max4, _mm_movehl_ps(max4, max4));
  return _mm_cvtss_f32(_mm_max_ss(max2, _mm_movehdup_ps(max2)));
}

// t = kMagic + n for an integer n in [-126, 127]: 2^n.
inline Vec Pow2FromMagic(Vec t) {
  const __m512i biased = _mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}

// t = kMagic + n for integers n in [-127, 127]: the 16 bytes n.
inline void StoreBytesFromMagic(int8_t* p, Vec t) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_castps_si512(t)));
}

inline Vec LoadHalf(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec LoadHalfPartial(const uint16_t* p, int64_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstMask(n), p));
}
inline void StoreHalf(uint16_t* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Pairs (2i, 2i + 1) of lanes.
inline Vec DuplicateEven(Vec v) { return _mm512_moveldup_ps(v); }
inline Vec DuplicateOdd(Vec v) { return _mm512_movehdup_ps(v); }
inline Vec SwapPairs(Vec v) { return _mm512_permute_ps(v, 0xb1); }
inline Vec NegateEven(Vec v) {
  const __m512i sign = _mm512_set1_epi64(0x80000000);
  return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v), sign));
}

// 32 floats to their even and odd elements.
inline void Deinterleave(const float* p, Vec* even, Vec* odd) {
  const __m512i index = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const Vec low = Load(p);
  const Vec high = Load(p + 16);
  *even = _mm512_permutex2var_ps(low, index, high);
  *odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(index, _mm512_set1_epi32(1)), high);
}
