// One tile of attention: up to kBlockRows query vectors against 64 positions of one KV head, in the
// order that kernels/ops.h fixes. Vectors that share a load of K or V keep each its own order.

inline constexpr int kTilePages = kAttentionTile / kPageTokens;
inline constexpr int64_t kCacheLine = 64;

// State of the query vectors of an item, in the thread's scratch.
struct AttentionState {
  int64_t padded_dim = 0;        // head_dim rounded up to 16
  float* segment_acc = nullptr;  // [vectors][padded_dim]
  float* total_acc = nullptr;    // [vectors][padded_dim]
  float* segment_sum = nullptr;  // [vectors][16] lane sums
  // Vectors [group_begin[g], group_begin[g + 1]) read KV head kv_head[g].
  int64_t num_groups = 0;
  int64_t group_begin[cpu::kMaxAttentionVectors + 1];
  int64_t kv_head[cpu::kMaxAttentionVectors];
  const float* q[cpu::kMaxAttentionVectors];
  float* out[cpu::kMaxAttentionVectors];
  int64_t position[cpu::kMaxAttentionVectors];
  float segment_max[cpu::kMaxAttentionVectors];
  float total_max[cpu::kMaxAttentionVectors];
  float total_sum[cpu::kMaxAttentionVectors];
};

// The pages of one tile, and the keys that are wanted after it: V is prefetched while K is read,
// the next keys while V is. All pointers are valid: those of missing pages repeat others.
template <class Kv>
struct Tile {
  using Element = typename Kv::Element;
  const Element* k[kTilePages];
  const Element* v[kTilePages];
  const float* scales[kTilePages];  // K's 16, V's 16; Kv::kScaled only
  const Element* next_k[kTilePages];
};

// A tile widened to f32 for many vectors; those of int8 keep their scales.
struct WideInt8Kv : F32Kv {
  static constexpr bool kScaled = true;
};
template <class Kv>
using Wide = std::conditional_t<Kv::kScaled, WideInt8Kv, F32Kv>;

// scores[r][0..16 * kPages) = q[r] . K of pages k, unscaled; rows of scores are kAttentionTile
// apart.
template <class Kv, int kRows, int kPages, bool kPrefetch>
inline void Scores(const float* const* q, const typename Kv::Element* const* k,
                   const typename Kv::Element* const* next, int64_t head_dim, float* scores) {
  constexpr int kLineDims = kCacheLine / (kPageTokens * sizeof(typename Kv::Element));
  Vec acc[kRows][kPages];
  Unroll<kRows>([&](auto r) SHOAL_INLINE {
    Unroll<kPages>([&](auto p) SHOAL_INLINE { acc[r()][p()] = Zero(); });
  });
  const auto add = [&](int64_t d) SHOAL_INLINE {
    Vec keys[kPages];
    Unroll<kPages>([&](auto p) SHOAL_INLINE { keys[p()] = Kv::Read(k[p()] + d * kPageTokens); });
    Unroll<kRows>([&](auto r) SHOAL_INLINE {
      const Vec value = Set1(q[r()][d]);
      Unroll<kPages>([&](auto p)
                         SHOAL_INLINE { acc[r()][p()] = Fma(value, keys[p()], acc[r()][p()]); });
    });
  };
  int64_t d = 0;
  for (; d + kLineDims <= head_dim; d += kLineDims) {
    if (kPrefetch) {
      Unroll<kPages>([&](auto p) SHOAL_INLINE { Prefetch(next[p()] + d * kPageTokens); });
    }
    Unroll<kLineDims>([&](auto i) SHOAL_INLINE { add(d + i()); });
  }
  for (; d < head_dim; ++d) {
    add(d);
  }
  Unroll<kRows>([&](auto r) SHOAL_INLINE {
    Unroll<kPages>([&](auto p) SHOAL_INLINE {
      Store(scores + r() * kAttentionTile + p() * kPageTokens, acc[r()][p()]);
    });
  });
}

template <class Kv, int kRows, bool kPrefetch>
inline void TileScores(const float* const* q, const Tile<Kv>& tile, int64_t pages, int64_t head_dim,
                       float* scores) {
  int64_t p = 0;
  for (; p + kScorePages <= pages; p += kScorePages) {
    Scores<Kv, kRows, kScorePages, kPrefetch>(q, tile.k + p, tile.v + p, head_dim,
                                              scores + p * kPageTokens);
  }
  for (; p < pages; ++p) {
    Scores<Kv, kRows, 1, kPrefetch>(q, tile.k + p, tile.v + p, head_dim, scores + p * kPageTokens);
  }
}

// How many positions of a tile each vector of a block may see: 1..64.
template <int kRows>
struct RowLimits {
  int64_t limit[kRows];
  int64_t shortest;
};

// Scales the scores of a block, -inf where they are masked, and gives the new running maxima.
template <class Kv, int kRows>
inline void ScaleScores(const Tile<Kv>& tile, const RowLimits<kRows>& limits, float scale,
                        const float* old_max, float* new_max, float* scores) {
  Unroll<kRows>([&](auto r) SHOAL_INLINE {
    float* row = scores + r() * kAttentionTile;
    Vec s[kTilePages];
    Unroll<kTilePages>([&](auto p) SHOAL_INLINE {
      s[p()] = Load(row + p() * kPageTokens);
      if (Kv::kScaled) {
        s[p()] = Mul(s[p()], Load(tile.scales[p()]));
      }
      s[p()] = Mul(s[p()], Set1(scale));
    });
    if (limits.limit[r()] < kAttentionTile) {
      Unroll<kTilePages>([&](auto p) SHOAL_INLINE {
        const int64_t valid = limits.limit[r()] - p() * kPageTokens;
        const int64_t n = valid < 0 ? 0 : valid < kPageTokens ? valid : kPageTokens;
        s[p()] = FirstLanes(s[p()], n, Set1(-__builtin_inff()));
      });
    }
    Vec max = s[0];
    Unroll<kTilePages>([&](auto p) SHOAL_INLINE {
      Store(row + p() * kPageTokens, s[p()]);
      max = Max(max, s[p()]);
    });
    const float tile_max = ReduceMax(max);
    new_max[r()] = old_max[r()] > tile_max ? old_max[r()] : tile_max;
  });
}

// Multiplies what the vectors whose maximum has grown have summed by exp(old - new). (For the
// others the factor is 1 exactly.)
template <int kRows>
inline void Rescale(AttentionState& state, int64_t vector, const float* new_max) {
  alignas(64) float factors[16];
  const float* old_max = state.segment_max + vector;
  Store(factors, Exp(Sub(LoadPartial(old_max, kRows), LoadPartial(new_max, kRows))));
  for (int r = 0; r < kRows; ++r) {
    if (new_max[r] == old_max[r]) {
      continue;
    }
    const Vec factor = Set1(factors[r]);
    float* sum = state.segment_sum + (vector + r) * 16;
    Store(sum, Mul(Load(sum), factor));
    float* acc = state.segment_acc + (vector + r) * state.padded_dim;
    for (int64_t d = 0; d < state.padded_dim; d += 16) {
      Store(acc + d, Mul(Load(acc + d), factor));
    }
  }
}

// Turns the scores of a block into weights exp(s - maximum), and updates maxima and lane sums.
template <class Kv, int kRows>
inline void TileSoftmax(AttentionState& state, int64_t vector, const Tile<Kv>& tile,
                        const RowLimits<kRows>& limits, float scale, float* scores) {
  float new_max[kRows];
  float* old_max = state.segment_max + vector;
  ScaleScores<Kv, kRows>(tile, limits, scale, old_max, new_max, scores);
  bool grown = false;
  for (int r = 0; r < kRows; ++r) {
    grown |= new_max[r] != old_max[r];
  }
  if (grown) {
    Rescale<kRows>(state, vector, new_max);
  }
  Unroll<kRows>([&](auto r) SHOAL_INLINE {
    float* row = scores + r() * kAttentionTile;
    float* lanes = state.segment_sum + (vector + r()) * 16;
    const Vec max = Set1(new_max[r()]);
    Vec sum = Load(lanes);
    Unroll<kTilePages>([&](auto p) SHOAL_INLINE {
      Vec weight = ExpUpTo88(Sub(Load(row + p() * kPageTokens), max));
      sum = Add(sum, weight);
      if (Kv::kScaled) {
        weight = Mul(weight, Load(tile.scales[p()] + kPageTokens));
      }
      Store(row + p() * kPageTokens, weight);
    });
    Store(lanes, sum);
    old_max[r()] = new_max[r()];
  });
}

// acc[r] += weights[r][i] * V[i] for positions i in [begin, end) of the tile, in order, on kVectors
// vectors of head_dim from column d. The last vector has `last` lanes.
template <class Kv, int kRows, int kVectors, bool kPrefetch>
inline void AddValues(const float* weights, const Tile<Kv>& tile, int64_t begin, int64_t end,
                      int64_t head_dim, int64_t d, int64_t last, float* acc, int64_t acc_stride) {
  using Element = typename Kv::Element;
  constexpr int kLines = (kVectors * 16 * sizeof(Element) + kCacheLine - 1) / kCacheLine;
  Vec sum[kRows][kVectors];
  Unroll<kRows>([&](auto r) SHOAL_INLINE {
    Unroll<kVectors>(
        [&](auto c) SHOAL_INLINE { sum[r()][c()] = Load(acc + r() * acc_stride + d + c() * 16); });
  });
  for (int64_t i = begin; i < end;) {
    const int64_t page = i / kPageTokens;
    const int64_t page_end = (page + 1) * kPageTokens < end ? (page + 1) * kPageTokens : end;
    const int64_t at = (i % kPageTokens) * head_dim + d;
    const Element* row = tile.v[page] + at;
    const Element* next = tile.next_k[page] + at;
    for (; i < page_end; ++i, row += head_dim, next += head_dim) {
      if (kPrefetch) {
        Unroll<kLines>([&](auto l) SHOAL_INLINE {
          Prefetch(reinterpret_cast<const char*>(next) + l() * kCacheLine);
        });
      }
      Vec value[kVectors];
      Unroll<kVectors>([&](auto c) SHOAL_INLINE {
        value[c()] = c() + 1 < kVectors || last == 16 ? Kv::Read(row + c() * 16)
                                                      : Kv::ReadPartial(row + c() * 16, last);
      });
      Unroll<kRows>([&](auto r) SHOAL_INLINE {
        const Vec weight = Set1(weights[r() * kAttentionTile + i]);
        Unroll<kVectors>(
            [&](auto c) SHOAL_INLINE { sum[r()][c()] = Fma(weight, value[c()], sum[r()][c()]); });
      });
    }
  }
  Unroll<kRows>([&](auto r) SHOAL_INLINE {
    Unroll<kVectors>(
        [&](auto c) SHOAL_INLINE { Store(acc + r() * acc_stride + d + c() * 16, sum[r()][c()]); });
  });
}

// AddValues over all of head_dim.
template <class Kv, int kRows, bool kPrefetch>
inline void TileValues(const float* weights, const Tile<Kv>& tile, int64_t begin, int64_t end,
                       int64_t head_dim, float* acc, int64_t acc_stride) {
  if (begin >= end) {
    return;
  }
  int64_t d = 0;
  for (; d + 16 * kValueVectors <= head_dim; d += 16 * kValueVectors) {
    AddValues<Kv, kRows, kValueVectors, kPrefetch>(weights, tile, begin, end, head_dim, d, 16, acc,
                                                   acc_stride);
  }
  for (; d < head_dim; d += 16) {
    const int64_t last = head_dim - d < 16 ? head_dim - d : 16;
    AddValues<Kv, kRows, 1, kPrefetch>(weights, tile, begin, end, head_dim, d, last, acc,
                                       acc_stride);
  }
}

// kRows query vectors from `vector` on against one tile that starts at position `tile_begin`.
template <class Kv, int kRows, bool kPrefetch>
inline void AttendBlock(AttentionState& state, int64_t vector, const Tile<Kv>& tile,
                        int64_t tile_begin, int64_t head_dim, float scale) {
  alignas(64) float scores[kRows * kAttentionTile];
  RowLimits<kRows> limits;
  limits.shortest = kAttentionTile;
  for (int r = 0; r < kRows; ++r) {
    const int64_t own = state.position[vector + r] + 1 - tile_begin;
    limits.limit[r] = own < kAttentionTile ? own : kAttentionTile;
    limits.shortest = limits.limit[r] < limits.shortest ? limits.limit[r] : limits.shortest;
  }
  // Positions ascend with the vectors, so the last one has the longest reach.
  const int64_t pages = (limits.limit[kRows - 1] + kPageTokens - 1) / kPageTokens;
  TileScores<Kv, kRows, kPrefetch>(state.q + vector, tile, pages, head_dim, scores);
  TileSoftmax<Kv, kRows>(state, vector, tile, limits, scale, scores);
  float* acc = state.segment_acc + vector * state.padded_dim;
  TileValues<Kv, kRows, kPrefetch>(scores, tile, 0, limits.shortest, head_dim, acc,
                                   state.padded_dim);
  for (int r = 0; r < kRows; ++r) {
    TileValues<Kv, 1, false>(scores + r * kAttentionTile, tile, limits.shortest, limits.limit[r],
                             head_dim, acc + r * state.padded_dim, state.padded_dim);
  }
}

// The same for 1..kBlockRows vectors.
template <class Kv, bool kPrefetch, int kRows = kBlockRows>
inline void AttendRows(int64_t rows, AttentionState& state, int64_t vector, const Tile<Kv>& tile,
                       int64_t tile_begin, int64_t head_dim, float scale) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return AttendRows<Kv, kPrefetch, kRows - 1>(rows, state, vector, tile, tile_begin, head_dim,
                                                  scale);
    }
  }
  AttendBlock<Kv, kRows, kPrefetch>(state, vector, tile, tile_begin, head_dim, scale);
}

// The same for vectors [first, end), in blocks of even sizes.
template <class Kv, bool kPrefetch>
inline void AttendTile(AttentionState& state, int64_t first, int64_t end, const Tile<Kv>& tile,
                       int64_t tile_begin, int64_t head_dim, float scale) {
  int64_t blocks = (end - first + kBlockRows - 1) / kBlockRows;
  bool prefetch = kPrefetch;
  for (int64_t vector = first; blocks > 0; --blocks) {
    const int64_t rows = (end - vector + blocks - 1) / blocks;
    if (prefetch) {
      AttendRows<Kv, kPrefetch>(rows, state, vector, tile, tile_begin, head_dim, scale);
    } else {
      AttendRows<Kv, false>(rows, state, vector, tile, tile_begin, head_dim, scale);
    }
    prefetch = false;
    vector += rows;
  }
}
