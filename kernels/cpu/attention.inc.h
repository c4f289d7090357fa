// Causal attention over KV pages, in the order that kernels/ops.h fixes. Several query vectors
// (rows and heads that read one KV head) share each load of K and V; that changes no vector's own
// order.

inline constexpr int kTilePages = kAttentionTile / kPageTokens;
inline constexpr int kTilesPerSegment = kAttentionSegment / kAttentionTile;
inline constexpr int kValueVectors = 4;  // vectors of head_dim whose sums are formed together

inline Vec LoadKv(const float* p) { return Load(p); }
inline Vec LoadKv(const uint16_t* p) { return LoadHalf(p); }
inline Vec LoadKvPartial(const float* p, int64_t n) { return LoadPartial(p, n); }
inline Vec LoadKvPartial(const uint16_t* p, int64_t n) { return LoadHalfPartial(p, n); }

// State of the query vectors of an item, in the thread's scratch.
struct AttentionState {
  int64_t padded_dim = 0;        // head_dim rounded up to 16
  float* segment_acc = nullptr;  // [vectors][padded_dim]
  float* total_acc = nullptr;    // [vectors][padded_dim]
  float* segment_sum = nullptr;  // [vectors][16] lane sums
  const float* q[cpu::kMaxAttentionVectors];
  int64_t position[cpu::kMaxAttentionVectors];
  float segment_max[cpu::kMaxAttentionVectors];
  float total_max[cpu::kMaxAttentionVectors];
  float total_sum[cpu::kMaxAttentionVectors];
};

// The pages of one tile: K transposed [head_dim][16], V [16][head_dim].
template <class T>
struct TilePointers {
  const T* k[kTilePages];
  const T* v[kTilePages];
};

// scores[r][0..16 * kPages) = q[r] . K, unscaled; scores are kAttentionTile apart.
template <int kRows, int kPages, class T>
inline void Scores(const float* const* q, const T* const* k, int64_t head_dim, float* scores) {
  Vec acc[kRows][kPages];
  Unroll<kRows>([&](auto r) SHOAL_INLINE {
    Unroll<kPages>([&](auto p) SHOAL_INLINE { acc[r()][p()] = Zero(); });
  });
  for (int64_t d = 0; d < head_dim; ++d) {
    Vec keys[kPages];
    Unroll<kPages>([&](auto p) SHOAL_INLINE { keys[p()] = LoadKv(k[p()] + d * kPageTokens); });
    Unroll<kRows>([&](auto r) SHOAL_INLINE {
      const Vec value = Set1(q[r()][d]);
      Unroll<kPages>([&](auto p)
                         SHOAL_INLINE { acc[r()][p()] = Fma(value, keys[p()], acc[r()][p()]); });
    });
  }
  Unroll<kRows>([&](auto r) SHOAL_INLINE {
    Unroll<kPages>([&](auto p) SHOAL_INLINE {
      Store(scores + r() * kAttentionTile + p() * kPageTokens, acc[r()][p()]);
    });
  });
}

template <int kRows, class T>
inline void TileScores(const float* const* q, const TilePointers<T>& tile, int64_t pages,
                       int64_t head_dim, float* scores) {
  int64_t p = 0;
  for (; p + kScorePages <= pages; p += kScorePages) {
    Scores<kRows, kScorePages>(q, tile.k + p, head_dim, scores + p * kPageTokens);
  }
  for (; p < pages; ++p) {
    Scores<kRows, 1>(q, tile.k + p, head_dim, scores + p * kPageTokens);
  }
}

// Turns the scores of one vector's tile into weights exp(s - max), updates its maximum and lane
// sums and rescales what it has summed. `limit` (1..64) positions of the tile are its own or
// earlier.
inline void TileSoftmax(AttentionState& state, int64_t vector, float scale, int64_t limit,
                        float* scores) {
  const int64_t pages = (limit + kPageTokens - 1) / kPageTokens;
  Vec max = Set1(-__builtin_inff());
  for (int64_t p = 0; p < pages; ++p) {
    Vec s = Mul(Load(scores + p * kPageTokens), Set1(scale));
    const int64_t valid = limit - p * kPageTokens;
    if (valid < kPageTokens) {
      s = FirstLanes(s, valid, Set1(-__builtin_inff()));
    }
    Store(scores + p * kPageTokens, s);
    max = Max(max, s);
  }
  const float tile_max = ReduceMax(max);
  const float old_max = state.segment_max[vector];
  const float new_max = old_max > tile_max ? old_max : tile_max;
  float* sum_lanes = state.segment_sum + vector * 16;
  Vec sum = Load(sum_lanes);
  if (new_max != old_max) {  // else the factor is exp(0) = 1 exactly
    const Vec factor = Exp(Sub(Set1(old_max), Set1(new_max)));
    sum = Mul(sum, factor);
    float* acc = state.segment_acc + vector * state.padded_dim;
    for (int64_t d = 0; d < state.padded_dim; d += 16) {
      Store(acc + d, Mul(Load(acc + d), factor));
    }
  }
  for (int64_t p = 0; p < pages; ++p) {
    const Vec weight = Exp(Sub(Load(scores + p * kPageTokens), Set1(new_max)));
    Store(scores + p * kPageTokens, weight);
    sum = Add(sum, weight);
  }
  Store(sum_lanes, sum);
  state.segment_max[vector] = new_max;
}

// acc[r] += weights[r][i] * V[i] for positions i in [begin, end) of the tile, in order, on kVectors
// vectors of head_dim from column d. The last vector has `last` lanes.
template <int kRows, int kVectors, class T>
inline void AddValues(const float* weights, const TilePointers<T>& tile, int64_t begin, int64_t end,
                      int64_t head_dim, int64_t d, int64_t last, float* acc, int64_t acc_stride) {
  Vec sum[kRows][kVectors];
  Unroll<kRows>([&](auto r) SHOAL_INLINE {
    Unroll<kVectors>(
        [&](auto c) SHOAL_INLINE { sum[r()][c()] = Load(acc + r() * acc_stride + d + c() * 16); });
  });
  for (int64_t i = begin; i < end; ++i) {
    const T* row = tile.v[i / kPageTokens] + (i % kPageTokens) * head_dim + d;
    Vec value[kVectors];
    Unroll<kVectors>([&](auto c) SHOAL_INLINE {
      value[c()] = c() + 1 < kVectors || last == 16 ? LoadKv(row + c() * 16)
                                                    : LoadKvPartial(row + c() * 16, last);
    });
    Unroll<kRows>([&](auto r) SHOAL_INLINE {
      const Vec weight = Set1(weights[r() * kAttentionTile + i]);
      Unroll<kVectors>(
          [&](auto c) SHOAL_INLINE { sum[r()][c()] = Fma(weight, value[c()], sum[r()][c()]); });
    });
  }
  Unroll<kRows>([&](auto r) SHOAL_INLINE {
    Unroll<kVectors>(
        [&](auto c) SHOAL_INLINE { Store(acc + r() * acc_stride + d + c() * 16, sum[r()][c()]); });
  });
}

// AddValues over all of head_dim.
template <int kRows, class T>
inline void TileValues(const float* weights, const TilePointers<T>& tile, int64_t begin,
                       int64_t end, int64_t head_dim, float* acc, int64_t acc_stride) {
  if (begin >= end) {
    return;
  }
  for (int64_t d = 0; d < head_dim;) {
    const int64_t left = head_dim - d;
    if (left >= 16 * kValueVectors) {
      AddValues<kRows, kValueVectors>(weights, tile, begin, end, head_dim, d, 16, acc, acc_stride);
      d += 16 * kValueVectors;
    } else if (left >= 32) {
      AddValues<kRows, 2>(weights, tile, begin, end, head_dim, d, 16, acc, acc_stride);
      d += 32;
    } else {
      const int64_t last = left < 16 ? left : 16;
      AddValues<kRows, 1>(weights, tile, begin, end, head_dim, d, last, acc, acc_stride);
      d += 16;
    }
  }
}

// kRows query vectors from `vector` on against one tile that starts at position `tile_begin`.
template <int kRows, class T>
inline void AttendTile(AttentionState& state, int64_t vector, const TilePointers<T>& tile,
                       int64_t tile_begin, int64_t head_dim, float scale) {
  alignas(64) float scores[kRows * kAttentionTile];
  int64_t limit[kRows];
  int64_t shortest = kAttentionTile;
  for (int r = 0; r < kRows; ++r) {
    const int64_t own = state.position[vector + r] + 1 - tile_begin;
    limit[r] = own < kAttentionTile ? own : kAttentionTile;
    shortest = limit[r] < shortest ? limit[r] : shortest;
  }
  // Positions ascend with the vectors, so the last one has the longest reach.
  const int64_t pages = (limit[kRows - 1] + kPageTokens - 1) / kPageTokens;
  TileScores<kRows>(state.q + vector, tile, pages, head_dim, scores);
  for (int r = 0; r < kRows; ++r) {
    TileSoftmax(state, vector + r, scale, limit[r], scores + r * kAttentionTile);
  }
  float* acc = state.segment_acc + vector * state.padded_dim;
  TileValues<kRows>(scores, tile, 0, shortest, head_dim, acc, state.padded_dim);
  for (int r = 0; r < kRows; ++r) {
    TileValues<1>(scores + r * kAttentionTile, tile, shortest, limit[r], head_dim,
                  acc + r * state.padded_dim, state.padded_dim);
  }
}

template <class T>
inline void AttendTileAll(AttentionState& state, int64_t first, int64_t vectors,
                          const TilePointers<T>& tile, int64_t tile_begin, int64_t head_dim,
                          float scale) {
  int64_t vector = first;
  for (; vector + kScoreRows <= vectors; vector += kScoreRows) {
    AttendTile<kScoreRows>(state, vector, tile, tile_begin, head_dim, scale);
  }
  for (; vector < vectors; ++vector) {
    AttendTile<1>(state, vector, tile, tile_begin, head_dim, scale);
  }
}

// Joins the segment into the total and starts the next one, for vectors from `first` on.
inline void JoinSegment(AttentionState& state, int64_t first, int64_t vectors) {
  for (int64_t vector = first; vector < vectors; ++vector) {
    const float old_max = state.total_max[vector];
    const float segment_max = state.segment_max[vector];
    if (segment_max == -__builtin_inff()) {  // the vector ended with the segment before
      continue;
    }
    const float new_max = old_max > segment_max ? old_max : segment_max;
    alignas(64) float factors[2][16];
    const Vec old_factor = Exp(Sub(Set1(old_max), Set1(new_max)));
    const Vec new_factor = Exp(Sub(Set1(segment_max), Set1(new_max)));
    Store(factors[0], old_factor);
    Store(factors[1], new_factor);
    float* sum_lanes = state.segment_sum + vector * 16;
    const float scaled = state.total_sum[vector] * factors[0][0];
    state.total_sum[vector] = __builtin_fmaf(ReduceAdd(Load(sum_lanes)), factors[1][0], scaled);
    float* segment = state.segment_acc + vector * state.padded_dim;
    float* total = state.total_acc + vector * state.padded_dim;
    for (int64_t d = 0; d < state.padded_dim; d += 16) {
      Store(total + d, Fma(Load(segment + d), new_factor, Mul(Load(total + d), old_factor)));
      Store(segment + d, Zero());
    }
    Store(sum_lanes, Zero());
    state.total_max[vector] = new_max;
    state.segment_max[vector] = -__builtin_inff();
  }
}

// Widens the pages of a tile to f32 in scratch, for items with many query vectors.
inline TilePointers<float> WidenTile(const TilePointers<uint16_t>& tile, int64_t pages,
                                     int64_t head_dim, float* to) {
  TilePointers<float> result = {};
  const int64_t elements = head_dim * kPageTokens;
  for (int64_t p = 0; p < pages; ++p) {
    float* k = to + 2 * p * elements;
    for (int64_t i = 0; i < elements; i += 16) {
      Store(k + i, LoadHalf(tile.k[p] + i));
      Store(k + elements + i, LoadHalf(tile.v[p] + i));
    }
    result.k[p] = k;
    result.v[p] = k + elements;
  }
  return result;
}
inline const TilePointers<float>& WidenTile(const TilePointers<float>& tile, int64_t, int64_t,
                                            float*) {
  return tile;
}

template <class T>
inline void AttendItem(const AttentionArgs& args, const cpu::AttentionItem& item, int64_t vectors,
                       AttentionState& state, float* widened) {
  const KvPages& pages = args.pages;
  const int64_t head_dim = pages.head_dim;
  const int32_t* table = args.layout.block_tables[item.seq];
  const int64_t kv_head = args.kv_head_of[item.head_begin];
  const int64_t end = state.position[vectors - 1] + 1;
  int64_t first = 0;
  for (int64_t tile_begin = 0; tile_begin < end; tile_begin += kAttentionTile) {
    while (state.position[first] < tile_begin) {  // fully masked from here on
      ++first;
    }
    const int64_t reach = end - tile_begin < kAttentionTile ? end - tile_begin : kAttentionTile;
    const int64_t num_pages = (reach + kPageTokens - 1) / kPageTokens;
    TilePointers<T> tile = {};
    for (int64_t p = 0; p < num_pages; ++p) {
      const int64_t page = table[tile_begin / kPageTokens + p];
      tile.k[p] = static_cast<const T*>(pages.base) +
                  (page * pages.kv_heads + kv_head) * 2 * kPageTokens * head_dim;
      tile.v[p] = tile.k[p] + kPageTokens * head_dim;
    }
    if (vectors - first > 2 * kScoreRows) {
      AttendTileAll(state, first, vectors, WidenTile(tile, num_pages, head_dim, widened),
                    tile_begin, head_dim, args.scale);
    } else {
      AttendTileAll(state, first, vectors, tile, tile_begin, head_dim, args.scale);
    }
    if ((tile_begin / kAttentionTile) % kTilesPerSegment == kTilesPerSegment - 1) {
      JoinSegment(state, first, vectors);
    }
  }
  JoinSegment(state, 0, vectors);  // what ended inside a segment
}

inline void Attention(const AttentionArgs& args, const cpu::AttentionItem& item,
                      cpu::Scratch scratch) {
  const int64_t head_dim = args.pages.head_dim;
  const int64_t heads = item.head_end - item.head_begin;
  const int64_t vectors = (item.row_end - item.row_begin) * heads;
  AttentionState state;
  state.padded_dim = (head_dim + 15) / 16 * 16;
  float* at = reinterpret_cast<float*>(scratch.data);
  state.segment_acc = at;
  state.total_acc = at + vectors * state.padded_dim;
  state.segment_sum = state.total_acc + vectors * state.padded_dim;
  float* widened = state.segment_sum + vectors * 16;
  memset(at, 0, (widened - at) * sizeof(float));
  for (int64_t i = 0; i < vectors; ++i) {
    const int64_t row = item.row_begin + i / heads;
    const int64_t head = item.head_begin + i % heads;
    state.q[i] = args.q + row * args.q_stride + head * head_dim;
    state.position[i] = args.layout.positions[row];
    state.segment_max[i] = -__builtin_inff();
    state.total_max[i] = -__builtin_inff();
    state.total_sum[i] = 0;
  }
  if (args.pages.type == KvType::kF16) {
    AttendItem<uint16_t>(args, item, vectors, state, widened);
  } else {
    AttendItem<float>(args, item, vectors, state, widened);
  }
  for (int64_t i = 0; i < vectors; ++i) {
    const int64_t row = item.row_begin + i / heads;
    const int64_t head = item.head_begin + i % heads;
    float* out = args.out + row * args.out_stride + head * head_dim;
    const float* total = state.total_acc + i * state.padded_dim;
    for (int64_t d = 0; d < head_dim; d += 16) {
      const int64_t n = head_dim - d < 16 ? head_dim - d : 16;
      StorePartial(out + d, Div(Load(total + d), Set1(state.total_sum[i])), n);
    }
  }
}
