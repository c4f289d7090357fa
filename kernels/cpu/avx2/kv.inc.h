// K and V as they lie in pages, to 16 lanes and back, on AVX2. Contracts: avx512/kv.inc.h.

inline __m256 Bf16ToFloat8(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Vec LoadBf16(const uint16_t* p) {
  return {Bf16ToFloat8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          Bf16ToFloat8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline Vec LoadBf16Partial(const uint16_t* p, int64_t n) {
  alignas(32) uint16_t padded[16] = {};
  memcpy(padded, p, n * sizeof(uint16_t));
  return LoadBf16(padded);
}
// The result in the upper halves of the 32-bit lanes.
inline __m256i RoundToBf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  return _mm256_castps_si256(_mm256_blendv_ps(
      _mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), _mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}
inline void StoreBf16(uint16_t* p, Vec v) {
  const __m256i low = _mm256_srli_epi32(RoundToBf16(v.low), 16);
  const __m256i high = _mm256_srli_epi32(RoundToBf16(v.high), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}

inline __m256 BytesToFloat8(const int8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
inline Vec LoadBytes(const int8_t* p) { return {BytesToFloat8(p), BytesToFloat8(p + 8)}; }
inline Vec LoadBytesPartial(const int8_t* p, int64_t n) {
  alignas(16) int8_t padded[16] = {};
  memcpy(padded, p, n);
  return LoadBytes(padded);
}

inline void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

inline constexpr int kBlockRows = 3;
inline constexpr int kScorePages = 2;
inline constexpr int kValueVectors = 2;
