// K and V as they lie in pages, to 16 lanes and back, for any x86-64. Contracts: avx512/kv.inc.h.

inline float Bf16ToFloat(uint16_t bits) { return FloatOf(static_cast<uint32_t>(bits) << 16); }
inline uint16_t FloatToBf16(float x) {
  const uint32_t bits = BitsOf(x);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    return static_cast<uint16_t>(bits >> 16 | 0x40);
  }
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline Vec LoadBf16(const uint16_t* p) {
  return Map([&](int i) { return Bf16ToFloat(p[i]); });
}
inline Vec LoadBf16Partial(const uint16_t* p, int64_t n) {
  return Map([&](int i) { return i < n ? Bf16ToFloat(p[i]) : 0.0f; });
}
inline void StoreBf16(uint16_t* p, Vec v) {
  for (int i = 0; i < 16; ++i) {
    p[i] = FloatToBf16(v.v[i]);
  }
}

inline Vec LoadBytes(const int8_t* p) {
  return Map([&](int i) { return static_cast<float>(p[i]); });
}
inline Vec LoadBytesPartial(const int8_t* p, int64_t n) {
  return Map([&](int i) { return i < n ? static_cast<float>(p[i]) : 0.0f; });
}

inline void Prefetch(const void*) {}

inline constexpr int kBlockRows = 2;
inline constexpr int kScorePages = 2;
inline constexpr int kValueVectors = 2;
