// K and V as they lie in pages, to 16 lanes and back, on AVX-512. The contract of each function is
// the same in portable/kv.inc.h and avx2/kv.inc.h.

// bfloat16: the upper 16 bits of a float.
inline Vec LoadBf16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
// Lanes >= n are zero. REQUIRES of all partial loads: 0 <= n <= 16.
inline Vec LoadBf16Partial(const uint16_t* p, int64_t n) {
  const __m256i bits = _mm256_maskz_loadu_epi16(FirstMask(n), p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
// Nearest, ties to even; NaN stays, quiet.
inline void StoreBf16(uint16_t* p, Vec v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i chosen =
      _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
}

inline Vec LoadBytes(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
inline Vec LoadBytesPartial(const int8_t* p, int64_t n) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(FirstMask(n), p)));
}

inline void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

// Query vectors x pages whose scores are formed together, and query vectors x vectors of head_dim
// whose sums are: as many accumulators as registers carry.
inline constexpr int kBlockRows = 4;
inline constexpr int kScorePages = 4;
inline constexpr int kValueVectors = 4;
