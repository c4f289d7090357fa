// Rope, KvStore and SwiGlu. Contracts: kernels/ops.h.

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

// K of one token to a column of the page, V to a row.
inline void StoreTokenHalf(const float* k, const float* v, int64_t head_dim, int64_t slot,
                           uint16_t* page_k) {
  uint16_t* to_v = page_k + head_dim * kPageTokens + slot * head_dim;
  alignas(64) uint16_t half[16];
  for (int64_t d = 0; d < head_dim; d += 16) {
    const int64_t n = head_dim - d < 16 ? head_dim - d : 16;
    StoreHalf(half, LoadPartial(k + d, n));
    for (int64_t i = 0; i < n; ++i) {
      page_k[(d + i) * kPageTokens + slot] = half[i];
    }
    StoreHalf(half, LoadPartial(v + d, n));
    memcpy(to_v + d, half, n * sizeof(uint16_t));
  }
}

inline void StoreTokenFloat(const float* k, const float* v, int64_t head_dim, int64_t slot,
                            float* page_k) {
  for (int64_t d = 0; d < head_dim; ++d) {
    page_k[d * kPageTokens + slot] = k[d];
  }
  memcpy(page_k + head_dim * kPageTokens + slot * head_dim, v, head_dim * sizeof(float));
}

inline int64_t PageElements(const KvPages& pages) {
  return static_cast<int64_t>(2) * kPageTokens * pages.head_dim;
}

inline void KvStore(const KvStoreArgs& args, int64_t row_begin, int64_t row_end) {
  const KvPages& pages = args.pages;
  const StepLayout& layout = args.layout;
  const int64_t head_dim = pages.head_dim;
  int32_t seq = 0;
  for (int64_t row = row_begin; row < row_end; ++row) {
    while (row >= layout.seq_row_begin[seq + 1]) {
      ++seq;
    }
    const int64_t position = layout.positions[row];
    const int64_t page = layout.block_tables[seq][position / kPageTokens];
    const int64_t slot = position % kPageTokens;
    for (int32_t head = 0; head < pages.kv_heads; ++head) {
      const float* k = args.k + row * args.stride + head * head_dim;
      const float* v = args.v + row * args.stride + head * head_dim;
      const int64_t at = (page * pages.kv_heads + head) * PageElements(pages);
      if (pages.type == KvType::kF16) {
        StoreTokenHalf(k, v, head_dim, slot, static_cast<uint16_t*>(pages.base) + at);
      } else {
        StoreTokenFloat(k, v, head_dim, slot, static_cast<float*>(pages.base) + at);
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
