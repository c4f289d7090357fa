// Rope and SwiGlu. Contracts: kernels/ops.h.

// Pairs (2i, 2i + 1): a' = a c - b s, b' = b c + a s.
inline void RopeAdjacent(float* x, const float* table, int64_t rope_dim) {
  int64_t i = 0;
  for (; i + 16 <= rope_dim; i += 16) {
    const Vec v = Load(x + i);
    const Vec t = Load(table + i);
    const Vec crossed = Mul(SwapPairs(v), DuplicateOdd(t));
    Store(x + i, Add(Mul(v, DuplicateEven(t)), NegateEven(crossed)));
  }
  for (; i < rope_dim; i += 2) {
    const float a = x[i];
    const float b = x[i + 1];
    x[i] = a * table[i] - b * table[i + 1];
    x[i + 1] = b * table[i] + a * table[i + 1];
  }
}

// Pairs (i, i + rope_dim / 2).
inline void RopeHalves(float* x, const float* table, int64_t rope_dim) {
  const int64_t half = rope_dim / 2;
  int64_t i = 0;
  for (; i + 16 <= half; i += 16) {
    const Vec a = Load(x + i);
    const Vec b = Load(x + half + i);
    Vec cosine;
    Vec sine;
    Deinterleave(table + 2 * i, &cosine, &sine);
    Store(x + i, Sub(Mul(a, cosine), Mul(b, sine)));
    Store(x + half + i, Add(Mul(b, cosine), Mul(a, sine)));
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = x[half + i];
    x[i] = a * table[2 * i] - b * table[2 * i + 1];
    x[half + i] = b * table[2 * i] + a * table[2 * i + 1];
  }
}

inline void Rope(const RopeArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* table = args.table + static_cast<int64_t>(args.positions[row]) * args.rope_dim;
    for (int32_t head = 0; head < args.heads; ++head) {
      float* x = args.x + row * args.x_stride + static_cast<int64_t>(head) * args.head_dim;
      if (args.style == RopeStyle::kAdjacent) {
        RopeAdjacent(x, table, args.rope_dim);
      } else {
        RopeHalves(x, table, args.rope_dim);
      }
    }
  }
}

// silu(gate) * up = gate / (1 + exp(-gate)) * up.
inline Vec SwiGluVector(Vec gate, Vec up) {
  const Vec denominator = Add(Set1(1.0f), Exp(Sub(Zero(), gate)));
  return Mul(Div(gate, denominator), up);
}

inline void SwiGlu(const SwiGluArgs& args, int64_t block_begin, int64_t block_end) {
  const int64_t blocks_per_row = (args.width + 31) / 32;
  for (int64_t b = block_begin; b < block_end; ++b) {
    const int64_t row = b / blocks_per_row;
    const int64_t column = (b % blocks_per_row) * 32;
    const float* gate = args.gate_up + row * args.stride + column;
    const float* up = gate + args.width;
    Vec result[2];
    for (int i = 0; i < 2; ++i) {
      const int64_t left = args.width - column - 16 * i;
      const int64_t n = left < 0 ? 0 : left < 16 ? left : 16;
      result[i] = SwiGluVector(LoadPartial(gate + 16 * i, n), LoadPartial(up + 16 * i, n));
      if (args.out != nullptr) {
        StorePartial(args.out + row * args.width + column + 16 * i, result[i], n);
      }
    }
    if (args.quantized.q != nullptr) {
      QuantizeBlock(result[0], result[1], args.quantized, column / 32, row);
    }
  }
}
