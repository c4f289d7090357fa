// K and V in their pages (kernels/ops.h: KvPages): where they lie, how a value is read, KvStore.

// One struct for each KvType: the elements, and 16 of them as lanes.
struct F32Kv {
  using Element = float;
  static constexpr bool kScaled = false;
  static Vec Read(const float* p) { return Load(p); }
  static Vec ReadPartial(const float* p, int64_t n) { return LoadPartial(p, n); }
};
struct F16Kv {
  using Element = uint16_t;
  static constexpr bool kScaled = false;
  static Vec Read(const uint16_t* p) { return LoadHalf(p); }
  static Vec ReadPartial(const uint16_t* p, int64_t n) { return LoadHalfPartial(p, n); }
  static void Write(uint16_t* p, Vec v) { StoreHalf(p, v); }
};
struct Bf16Kv {
  using Element = uint16_t;
  static constexpr bool kScaled = false;
  static Vec Read(const uint16_t* p) { return LoadBf16(p); }
  static Vec ReadPartial(const uint16_t* p, int64_t n) { return LoadBf16Partial(p, n); }
  static void Write(uint16_t* p, Vec v) { StoreBf16(p, v); }
};
struct Int8Kv {
  using Element = int8_t;
  static constexpr bool kScaled = true;  // the integers; their scales come later
  static Vec Read(const int8_t* p) { return LoadBytes(p); }
  static Vec ReadPartial(const int8_t* p, int64_t n) { return LoadBytesPartial(p, n); }
};

template <class Kv>
inline int64_t HeadBytes(int64_t head_dim) {
  const int64_t values =
      2 * kPageTokens * head_dim * static_cast<int64_t>(sizeof(typename Kv::Element));
  return Kv::kScaled ? values + 2 * kPageTokens * static_cast<int64_t>(sizeof(float)) : values;
}

template <class Kv>
inline typename Kv::Element* HeadOfPage(const KvPages& pages, int64_t page, int64_t head) {
  char* base = static_cast<char*>(pages.base);
  return reinterpret_cast<typename Kv::Element*>(base + (page * pages.kv_heads + head) *
                                                            HeadBytes<Kv>(pages.head_dim));
}

// The scales of a head of a page: K's 16, then V's. REQUIRES: Kv::kScaled.
inline float* ScalesOf(int8_t* head, int64_t head_dim) {
  return reinterpret_cast<float*>(head + 2 * kPageTokens * head_dim);
}

// K of one token to a column of the page, V to a row; to_k and to_v are its first elements there.
template <class Kv>
inline void StoreToken(const float* k, const float* v, int64_t head_dim, uint16_t* to_k,
                       uint16_t* to_v) {
  alignas(64) uint16_t rounded[16];
  for (int64_t d = 0; d < head_dim; d += 16) {
    const int64_t n = head_dim - d < 16 ? head_dim - d : 16;
    Kv::Write(rounded, LoadPartial(k + d, n));
    for (int64_t i = 0; i < n; ++i) {
      to_k[(d + i) * kPageTokens] = rounded[i];
    }
    Kv::Write(rounded, LoadPartial(v + d, n));
    memcpy(to_v + d, rounded, n * sizeof(uint16_t));
  }
}

inline void StoreToken(const float* k, const float* v, int64_t head_dim, float* to_k, float* to_v) {
  for (int64_t d = 0; d < head_dim; ++d) {
    to_k[d * kPageTokens] = k[d];
  }
  memcpy(to_v, v, head_dim * sizeof(float));
}

// The scale of a token's values; *inverse is what they are multiplied by (0: all become 0).
inline float KvScale(const float* x, int64_t head_dim, float* inverse) {
  Vec max = Zero();
  Vec poison = Zero();  // 0 * x is 0 unless x is infinite or NaN
  for (int64_t d = 0; d < head_dim; d += 16) {
    const Vec values = LoadPartial(x + d, head_dim - d < 16 ? head_dim - d : 16);
    max = Max(max, Abs(values));
    poison = Add(poison, Mul(values, Zero()));
  }
  *inverse = 0;
  if (!(ReduceAdd(poison) == 0)) {
    return __builtin_nanf("");
  }
  const float largest = ReduceMax(max);
  if (largest < kTinyBlock) {
    return 0;
  }
  *inverse = 127.0f / largest;
  return largest / 127.0f;
}

// Quantises x; element d goes to to[d * stride].
inline void StoreBytes(const float* x, int64_t head_dim, float inverse, int8_t* to,
                       int64_t stride) {
  alignas(16) int8_t q[16] = {};
  for (int64_t d = 0; d < head_dim; d += 16) {
    const int64_t n = head_dim - d < 16 ? head_dim - d : 16;
    if (inverse != 0) {
      StoreBytesFromMagic(q, Add(Mul(LoadPartial(x + d, n), Set1(inverse)), Set1(kMagic)));
    }
    for (int64_t i = 0; i < n; ++i) {
      to[(d + i) * stride] = q[i];
    }
  }
}

inline void StoreTokenBytes(const float* k, const float* v, int64_t head_dim, int64_t slot,
                            int8_t* head) {
  float* scales = ScalesOf(head, head_dim);
  float inverse;
  scales[slot] = KvScale(k, head_dim, &inverse);
  StoreBytes(k, head_dim, inverse, head + slot, kPageTokens);
  scales[kPageTokens + slot] = KvScale(v, head_dim, &inverse);
  StoreBytes(v, head_dim, inverse, head + (kPageTokens + slot) * head_dim, 1);
}

// One token of one KV head into its slot.
inline void StoreTokenAs(const KvPages& pages, int64_t page, int64_t head, int64_t slot,
                         const float* k, const float* v) {
  const int64_t head_dim = pages.head_dim;
  const int64_t v_at = (kPageTokens + slot) * head_dim;
  switch (pages.type) {
    case KvType::kF32: {
      float* to = HeadOfPage<F32Kv>(pages, page, head);
      return StoreToken(k, v, head_dim, to + slot, to + v_at);
    }
    case KvType::kF16: {
      uint16_t* to = HeadOfPage<F16Kv>(pages, page, head);
      return StoreToken<F16Kv>(k, v, head_dim, to + slot, to + v_at);
    }
    case KvType::kBf16: {
      uint16_t* to = HeadOfPage<Bf16Kv>(pages, page, head);
      return StoreToken<Bf16Kv>(k, v, head_dim, to + slot, to + v_at);
    }
    case KvType::kInt8:
      return StoreTokenBytes(k, v, head_dim, slot, HeadOfPage<Int8Kv>(pages, page, head));
  }
}

inline void KvStore(const KvStoreArgs& args, int64_t row_begin, int64_t row_end) {
  const KvPages& pages = args.pages;
  const StepLayout& layout = args.layout;
  int32_t seq = 0;
  for (int64_t row = row_begin; row < row_end; ++row) {
    while (row >= layout.seq_row_begin[seq + 1]) {
      ++seq;
    }
    const int64_t position = layout.positions[row];
    const int64_t page = layout.block_tables[seq][position / kPageTokens];
    for (int64_t head = 0; head < pages.kv_heads; ++head) {
      const int64_t from = row * args.stride + head * pages.head_dim;
      StoreTokenAs(pages, page, head, position % kPageTokens, args.k + from, args.v + from);
    }
  }
}
