// Ops on whole rows: RmsNorm, Quantize, JoinAdd. Contracts: kernels/ops.h.

inline constexpr float kTinyBlock =
    1e-30f;  // smaller maxima count as zero (127 / max would overflow)

// t = kMagic + n for an integer n in (-2^22, 2^22): n. (No conversion, which NaN would not
// survive.)
inline int32_t IntFromMagic(float t) {
  uint32_t bits;
  uint32_t magic_bits;
  memcpy(&bits, &t, 4);
  memcpy(&magic_bits, &kMagic, 4);
  return static_cast<int32_t>(bits - magic_bits);
}

// Quantises block `block` of row `row`; `low` and `high` are its 32 values. Where one of them is
// NaN or infinite, its product with `inverse` is NaN (Inf * (127 / Inf)), and so is the sum of all.
inline void QuantizeBlock(Vec low, Vec high, const QuantizedRows& out, int64_t block, int64_t row) {
  const float max = ReduceMax(Max(Abs(low), Abs(high)));
  const bool tiny = max < kTinyBlock;
  const Vec inverse = Set1(tiny ? 0.0f : 127.0f / max);
  const int64_t at = block * out.rows + row;
  const Vec low_q = Add(Mul(low, inverse), Set1(kMagic));
  const Vec high_q = Add(Mul(high, inverse), Set1(kMagic));
  int8_t* q = out.q + at * 32;
  StoreBytesFromMagic(q, low_q);
  StoreBytesFromMagic(q + 16, high_q);
  // Integers this small add up exactly in float, in any order.
  const float sum = ReduceAdd(Add(Sub(low_q, Set1(kMagic)), Sub(high_q, Set1(kMagic))));
  const bool finite = sum == sum;
  const float scale = tiny ? 0.0f : max / 127.0f;
  out.scale[at] = finite ? scale : __builtin_nanf("");
  out.sum[at] = finite ? IntFromMagic(sum + kMagic) : 0;
}

inline void QuantizeRow(const float* x, const QuantizedRows& out, int64_t row) {
  for (int64_t block = 0; block < out.width / 32; ++block) {
    QuantizeBlock(Load(x + block * 32), Load(x + block * 32 + 16), out, block, row);
  }
}

inline void Quantize(const QuantizeArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    QuantizeRow(args.x + row * args.x_stride, args.out, row);
  }
}

// 1 / sqrt(mean of squares + eps); NaN where the squares overflow.
inline float InverseRms(const float* x, int64_t width, float eps) {
  Vec sum = Zero();
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) {
    const Vec v = Load(x + i);
    sum = Fma(v, v, sum);
  }
  if (i < width) {
    const Vec v = LoadPartial(x + i, width - i);
    sum = Fma(v, v, sum);
  }
  const float squares = ReduceAdd(sum);
  const float inverse = 1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + eps);
  return squares < __builtin_inff() ? inverse : __builtin_nanf("");
}

inline Vec Normed(const float* x, const float* weight, Vec inverse) {
  return Mul(Mul(Load(x), inverse), Load(weight));
}

// out = x * inverse * weight.
inline void ScaleRow(const float* x, const float* weight, float inverse_rms, int64_t width,
                     float* out) {
  const Vec inverse = Set1(inverse_rms);
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) {
    Store(out + i, Normed(x + i, weight + i, inverse));
  }
  if (i < width) {
    const Vec v = Mul(LoadPartial(x + i, width - i), inverse);
    StorePartial(out + i, Mul(v, LoadPartial(weight + i, width - i)), width - i);
  }
}

inline void ScaleAndQuantizeRow(const float* x, const float* weight, float inverse_rms,
                                const QuantizedRows& out, int64_t row) {
  const Vec inverse = Set1(inverse_rms);
  for (int64_t block = 0; block < out.width / 32; ++block) {
    const int64_t i = block * 32;
    QuantizeBlock(Normed(x + i, weight + i, inverse), Normed(x + i + 16, weight + i + 16, inverse),
                  out, block, row);
  }
}

inline void RmsNorm(const RmsNormArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t group = 0; group < args.groups; ++group) {
      const float* x = args.x + row * args.x_stride + group * args.width;
      const float inverse = InverseRms(x, args.width, args.eps);
      if (args.quantized.q != nullptr) {
        ScaleAndQuantizeRow(x, args.weight, inverse, args.quantized, row);
      }
      if (args.out != nullptr) {
        ScaleRow(x, args.weight, inverse, args.width,
                 args.out + row * args.out_stride + group * args.width);
      }
    }
  }
}

// One vector of a join; lanes >= n are not touched.
inline void JoinAddVector(const JoinAddArgs& args, int64_t at, int64_t n) {
  Vec parts[kMaxLeaves];
  for (int32_t i = 0; i < args.num_parts; ++i) {
    parts[i] = n == 16 ? Load(args.parts[i] + at) : LoadPartial(args.parts[i] + at, n);
  }
  for (int32_t i = 0; i < args.num_steps; ++i) {
    parts[args.steps[i].dst] = Add(parts[args.steps[i].dst], parts[args.steps[i].src]);
  }
  if (n == 16) {
    Store(args.out + at, Add(Load(args.residual + at), parts[0]));
  } else {
    StorePartial(args.out + at, Add(LoadPartial(args.residual + at, n), parts[0]), n);
  }
}

inline void JoinAdd(const JoinAddArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = row * args.width;
    for (int64_t i = 0; i < args.width; i += 16) {
      JoinAddVector(args, begin + i, args.width - i < 16 ? args.width - i : 16);
    }
    if (args.norm_weight == nullptr) {
      continue;
    }
    const float* x = args.out + begin;
    const float inverse = InverseRms(x, args.width, args.eps);
    if (args.normed != nullptr) {
      ScaleRow(x, args.norm_weight, inverse, args.width, args.normed + begin);
    }
    if (args.quantized.q != nullptr) {
      ScaleAndQuantizeRow(x, args.norm_weight, inverse, args.quantized, row);
    }
  }
}
