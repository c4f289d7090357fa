// What leaf.inc.h needs, in plain C++.

using DotVec = Vec;
inline constexpr int kDotLanes = 16;
inline constexpr int kMaxPanelRows = 4;
inline constexpr int kMaxFloatPanelRows = 4;
inline constexpr int kFewRowTiles = 1;
inline constexpr int kFloatTiles = 1;
inline constexpr int kSideBySide = 1;
inline constexpr int kMaxTileRows = 4;

inline DotVec SetDot(float x) { return Set1(x); }
inline DotVec LoadDot(const float* p) { return Load(p); }
inline DotVec LoadDotHalf(const uint16_t* p) { return LoadHalf(p); }
inline DotVec LoadDotBf16(const uint16_t* p) {
  return Map([&](int i) { return FloatOf(static_cast<uint32_t>(p[i]) << 16); });
}
inline DotVec LoadDotU8(const uint8_t* p) {
  return Map([&](int i) { return static_cast<float>(p[i]); });
}
inline DotVec LoadDotI8(const uint8_t* p) {
  return Map([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
}
inline void StoreDot(float* p, DotVec v) { Store(p, v); }
inline DotVec MulDot(DotVec a, DotVec b) { return Mul(a, b); }
inline DotVec FmaDot(DotVec a, DotVec b, DotVec c) { return Fma(a, b, c); }

struct Weights {
  uint8_t group[8][64];  // byte 4j + b of group g: column 4g + b of output j
};

template <int kBits>
inline void Decode(const uint8_t* codes, Weights* w) {
  if constexpr (kBits == 8) {
    memcpy(w->group, codes, sizeof(w->group));
    return;
  }
  for (int g = 0; g < 8; ++g) {
    for (int i = 0; i < 64; ++i) {
      int code = (codes[64 * (g % 4) + i] >> (g < 4 ? 0 : 4)) & 15;
      if constexpr (kBits == 5) {
        code |= ((codes[256 + i] >> g) & 1) << 4;
      } else if constexpr (kBits == 6) {
        code |= ((codes[256 + 64 * (g / 4) + i] >> (2 * (g % 4))) & 3) << 4;
      }
      w->group[g][i] = static_cast<uint8_t>(code);
    }
  }
}

template <int kFirst, int kLast>
inline DotVec DotBlock(const Weights& w, const int8_t* a, int32_t start) {
  int32_t sum[16];
  for (int j = 0; j < 16; ++j) {
    sum[j] = start;
  }
  for (int g = kFirst; g < kLast; ++g) {
    for (int j = 0; j < 16; ++j) {
      const uint8_t* q = w.group[g] + 4 * j;
      sum[j] += q[0] * a[4 * g] + q[1] * a[4 * g + 1] + q[2] * a[4 * g + 2] + q[3] * a[4 * g + 3];
    }
  }
  return Map([&](int i) { return static_cast<float>(sum[i]); });
}

template <int kBits, int kFirst, int kLast, int kCount>
inline void DotRows(const Weights& w, const int8_t* q, const int32_t* start, DotVec* dots) {
  static_assert(kCount == 1);
  dots[0] = DotBlock<kFirst, kLast>(w, q, start[0]);
}
