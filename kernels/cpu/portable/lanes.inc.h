// The 16 logical lanes as a plain array, for any x86-64, included inside namespace
// shoal::kernels::portable { namespace {. Contracts: avx512/lanes.inc.h. Each function computes,
// lane by lane, exactly what the vector instruction does.

struct Vec {
  float v[16];
};

template <class F>
inline Vec Map(F f) {
  Vec r;
  for (int i = 0; i < 16; ++i) {
    r.v[i] = f(i);
  }
  return r;
}

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
inline float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

inline Vec Zero() { return Vec{}; }
inline Vec Set1(float x) {
  return Map([&](int) { return x; });
}
inline Vec Load(const float* p) {
  return Map([&](int i) { return p[i]; });
}
inline void Store(float* p, Vec v) { memcpy(p, v.v, sizeof(v.v)); }
inline Vec LoadPartial(const float* p, int64_t n) {
  return Map([&](int i) { return i < n ? p[i] : 0.0f; });
}
inline void StorePartial(float* p, Vec v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    p[i] = v.v[i];
  }
}

inline Vec Add(Vec a, Vec b) {
  return Map([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec Sub(Vec a, Vec b) {
  return Map([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec Mul(Vec a, Vec b) {
  return Map([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec Div(Vec a, Vec b) {
  return Map([&](int i) { return a.v[i] / b.v[i]; });
}
inline Vec Fma(Vec a, Vec b, Vec c) {
  return Map([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline Vec Max(Vec a, Vec b) {
  return Map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec Abs(Vec a) {
  return Map([&](int i) { return __builtin_fabsf(a.v[i]); });
}
inline Vec SelectLess(Vec a, Vec b, Vec x, Vec y) {
  return Map([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}
inline Vec FirstLanes(Vec v, int64_t n, Vec rest) {
  return Map([&](int i) { return i < n ? v.v[i] : rest.v[i]; });
}

inline float ReduceAdd(Vec v) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      v.v[i] = v.v[i] + v.v[i + width];
    }
  }
  return v.v[0];
}
inline float ReduceMax(Vec v) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      v.v[i] = v.v[i] > v.v[i + width] ? v.v[i] : v.v[i + width];
    }
  }
  return v.v[0];
}

inline Vec Pow2FromMagic(Vec t) {
  return Map([&](int i) { return FloatOf((BitsOf(t.v[i]) + 127) << 23); });
}
inline void StoreBytesFromMagic(int8_t* p, Vec t) {
  for (int i = 0; i < 16; ++i) {
    p[i] = static_cast<int8_t>(BitsOf(t.v[i]) & 0xff);
  }
}

// IEEE binary16 to float: exact, subnormals kept, NaN made quiet (as vcvtph2ps).
inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fff;
  if (rest < 0x0400) {
    return FloatOf(sign | BitsOf(static_cast<float>(rest) * 0x1p-24f));
  }
  if (rest >= 0x7c00) {
    return FloatOf(sign | 0x7f800000 | (rest > 0x7c00 ? 0x400000 : 0) | (rest & 0x3ff) << 13);
  }
  return FloatOf(sign | ((rest << 13) + (112u << 23)));
}

// Float to IEEE binary16: nearest, ties to even (as vcvtps2ph).
inline uint16_t FloatToHalf(float x) {
  const uint32_t bits = BitsOf(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  }
  if (magnitude >= 0x47800000) {  // 65536 and more
    return static_cast<uint16_t>(sign | 0x7c00);
  }
  if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 leaves the value in units of 2^-24
    return static_cast<uint16_t>(sign | (BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f)));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

inline Vec LoadHalf(const uint16_t* p) {
  return Map([&](int i) { return HalfToFloat(p[i]); });
}
inline Vec LoadHalfPartial(const uint16_t* p, int64_t n) {
  return Map([&](int i) { return i < n ? HalfToFloat(p[i]) : 0.0f; });
}
inline void StoreHalf(uint16_t* p, Vec v) {
  for (int i = 0; i < 16; ++i) {
    p[i] = FloatToHalf(v.v[i]);
  }
}

inline Vec DuplicateEven(Vec v) {
  return Map([&](int i) { return v.v[i & ~1]; });
}
inline Vec DuplicateOdd(Vec v) {
  return Map([&](int i) { return v.v[i | 1]; });
}
inline Vec SwapPairs(Vec v) {
  return Map([&](int i) { return v.v[i ^ 1]; });
}
inline Vec NegateEven(Vec v) {
  return Map([&](int i) { return i % 2 == 0 ? -v.v[i] : v.v[i]; });
}
inline void Deinterleave(const float* p, Vec* even, Vec* odd) {
  *even = Map([&](int i) { return p[2 * i]; });
  *odd = Map([&](int i) { return p[2 * i + 1]; });
}
