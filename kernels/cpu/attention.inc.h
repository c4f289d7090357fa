// Causal attention over KV pages: items, their segments, and how segments are joined, in the order
// that kernels/ops.h fixes.

// Items with more vectors than this widen a tile to f32 once for all of them.
inline constexpr int64_t kMaxDirectVectors = 2 * kBlockRows;

inline int64_t NumVectors(const cpu::AttentionItem& item) {
  return (item.row_end - item.row_begin) * (item.head_end - item.head_begin);
}

// Lays the state of an item out in scratch, all sums zero; returns what is left of the scratch.
inline float* StartState(const AttentionArgs& args, const cpu::AttentionItem& item,
                         cpu::Scratch scratch, AttentionState* state) {
  const int64_t head_dim = args.pages.head_dim;
  const int64_t vectors = NumVectors(item);
  state->padded_dim = (head_dim + 15) / 16 * 16;
  state->segment_acc = reinterpret_cast<float*>(scratch.data);
  state->total_acc = state->segment_acc + vectors * state->padded_dim;
  state->segment_sum = state->total_acc + vectors * state->padded_dim;
  float* rest = state->segment_sum + vectors * 16;
  memset(state->segment_acc, 0, (rest - state->segment_acc) * sizeof(float));
  int64_t i = 0;
  for (int64_t head = item.head_begin; head < item.head_end;) {
    const int64_t group = state->num_groups++;
    state->group_begin[group] = i;
    state->kv_head[group] = args.kv_head_of[head];
    int64_t group_end = head;
    while (group_end < item.head_end && args.kv_head_of[group_end] == args.kv_head_of[head]) {
      ++group_end;
    }
    for (int64_t row = item.row_begin; row < item.row_end; ++row) {
      for (int64_t h = head; h < group_end; ++h, ++i) {
        state->q[i] = args.q + row * args.q_stride + h * head_dim;
        state->out[i] = args.out + row * args.out_stride + h * head_dim;
        state->position[i] = args.layout.positions[row];
        state->segment_max[i] = -__builtin_inff();
        state->total_max[i] = -__builtin_inff();
        state->total_sum[i] = 0;
      }
    }
    head = group_end;
  }
  state->group_begin[state->num_groups] = i;
  return rest;
}

// One segment of one vector, as it is handed from thread to thread: [padded_dim] sums, then the
// maximum and the sum of the weights.
inline float* RecordOf(const cpu::AttentionItem& item, const AttentionState& state, int64_t segment,
                       int64_t vector) {
  return item.records +
         (segment * NumVectors(item) + vector) * (state.padded_dim + cpu::kAttentionRecordExtra);
}

// Joins the segment's sums of up to 16 vectors, from `vector` on, into their totals. A vector whose
// segment_max is -inf has no position in the segment.
inline void JoinVectors(AttentionState& state, int64_t vector, int64_t count,
                        const float* const* segment_acc, const float* segment_sum) {
  alignas(64) float new_max[16];
  alignas(64) float total_factor[16];
  alignas(64) float segment_factor[16];
  const Vec old = LoadPartial(state.total_max + vector, count);
  const Vec segment = LoadPartial(state.segment_max + vector, count);
  const Vec max = Max(old, segment);
  Store(new_max, max);
  Store(total_factor, Exp(Sub(old, max)));
  Store(segment_factor, Exp(Sub(segment, max)));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = vector + i;
    if (state.segment_max[at] == -__builtin_inff()) {
      continue;
    }
    state.total_sum[at] =
        __builtin_fmaf(segment_sum[i], segment_factor[i], state.total_sum[at] * total_factor[i]);
    float* total = state.total_acc + at * state.padded_dim;
    for (int64_t d = 0; d < state.padded_dim; d += 16) {
      const Vec kept = Mul(Load(total + d), Set1(total_factor[i]));
      Store(total + d, Fma(Load(segment_acc[i] + d), Set1(segment_factor[i]), kept));
    }
    state.total_max[at] = new_max[i];
  }
}

// Makes the state's segment empty, for vectors from `first` on.
inline void ResetSegment(AttentionState& state, int64_t first, int64_t vectors) {
  memset(state.segment_acc + first * state.padded_dim, 0,
         (vectors - first) * state.padded_dim * sizeof(float));
  memset(state.segment_sum + first * 16, 0, (vectors - first) * 16 * sizeof(float));
  for (int64_t i = first; i < vectors; ++i) {
    state.segment_max[i] = -__builtin_inff();
  }
}

// The end of a segment: joins it into the totals, or writes its records.
inline void EndSegment(const cpu::AttentionItem& item, AttentionState& state, int64_t segment,
                       int64_t first, int64_t vectors) {
  if (item.records == nullptr) {
    for (int64_t i = first; i < vectors; i += 16) {
      const int64_t count = vectors - i < 16 ? vectors - i : 16;
      const float* acc[16];
      float sum[16];
      for (int64_t j = 0; j < count; ++j) {
        acc[j] = state.segment_acc + (i + j) * state.padded_dim;
        sum[j] = ReduceAdd(Load(state.segment_sum + (i + j) * 16));
      }
      JoinVectors(state, i, count, acc, sum);
    }
  } else {
    for (int64_t i = 0; i < vectors; ++i) {
      float* record = RecordOf(item, state, segment, i);
      memcpy(record, state.segment_acc + i * state.padded_dim, state.padded_dim * sizeof(float));
      record[state.padded_dim] = state.segment_max[i];
      record[state.padded_dim + 1] = ReduceAdd(Load(state.segment_sum + i * 16));
    }
  }
  ResetSegment(state, first, vectors);
}

// The pages of the tile that starts at `tile_begin`. `next_head` and `next_begin` tell which keys
// are wanted after it.
template <class Kv>
inline Tile<Kv> TileAt(const AttentionArgs& args, const int32_t* table, int64_t kv_head,
                       int64_t tile_begin, int64_t next_head, int64_t next_begin, int64_t end) {
  const int64_t elements = kPageTokens * args.pages.head_dim;
  const int64_t page = tile_begin / kPageTokens;
  const int64_t next_page = next_begin / kPageTokens;
  const int64_t last = (end - 1) / kPageTokens;
  Tile<Kv> tile;
  for (int64_t p = 0; p < kTilePages; ++p) {
    const int64_t own = page + p < last ? page + p : last;
    const int64_t next = next_page + p < last ? next_page + p : last;
    tile.k[p] = HeadOfPage<Kv>(args.pages, table[own], kv_head);
    tile.v[p] = tile.k[p] + elements;
    tile.scales[p] = reinterpret_cast<const float*>(tile.v[p] + elements);
    tile.next_k[p] = HeadOfPage<Kv>(args.pages, table[next], next_head);
  }
  return tile;
}

// The first `pages` pages of a tile as f32 in `to`.
template <class Kv>
inline Tile<Wide<Kv>> WidenTile(const Tile<Kv>& tile, int64_t pages, int64_t head_dim, float* to) {
  Tile<Wide<Kv>> result;
  const int64_t elements = head_dim * kPageTokens;
  for (int64_t p = 0; p < kTilePages; ++p) {
    const bool present = p < pages;
    result.k[p] = result.next_k[p] = present ? to + 2 * p * elements : to;
    result.v[p] = result.k[p] + elements;
    result.scales[p] = tile.scales[p];
    for (int64_t i = 0; present && i < 2 * elements; i += 16) {  // V follows K
      Prefetch(tile.next_k[p] + i);
      Store(to + 2 * p * elements + i, Kv::Read(tile.k[p] + i));
    }
  }
  return result;
}

// One tile against the vectors [first, end) of one group.
template <class Kv>
inline void AttendGroup(const AttentionArgs& args, AttentionState& state, int64_t first,
                        int64_t end, const Tile<Kv>& tile, int64_t tile_begin, float* widened) {
  const int64_t head_dim = args.pages.head_dim;
  if (end - first > kMaxDirectVectors && !std::is_same_v<Kv, F32Kv>) {
    const int64_t positions = state.position[end - 1] + 1 - tile_begin;
    const int64_t pages = (positions + kPageTokens - 1) / kPageTokens;
    AttendTile<Wide<Kv>, false>(
        state, first, end,
        WidenTile(tile, pages < kTilePages ? pages : kTilePages, head_dim, widened), tile_begin,
        head_dim, args.scale);
  } else {
    AttendTile<Kv, true>(state, first, end, tile, tile_begin, head_dim, args.scale);
  }
}

// All segments of an item. Tiles after the last position of a vector are fully masked for it.
template <class Kv>
inline void AttendItem(const AttentionArgs& args, const cpu::AttentionItem& item,
                       AttentionState& state, float* widened) {
  const int64_t vectors = NumVectors(item);
  const int32_t* table = args.layout.block_tables[item.seq];
  const int64_t end = state.position[vectors - 1] + 1;
  int64_t first = 0;
  for (int64_t segment = item.segment_begin; segment < item.segment_end; ++segment) {
    const int64_t first_of_segment = first;
    const int64_t segment_begin = segment * kAttentionSegment;
    const int64_t segment_end =
        segment_begin + kAttentionSegment < end ? segment_begin + kAttentionSegment : end;
    for (int64_t tile_begin = segment_begin; tile_begin < segment_end;
         tile_begin += kAttentionTile) {
      while (state.position[first] < tile_begin) {  // (with several groups: all reach the end)
        ++first;
      }
      for (int64_t group = 0; group < state.num_groups; ++group) {
        const int64_t begin = state.group_begin[group];
        const bool last = group + 1 == state.num_groups;
        const Tile<Kv> tile = TileAt<Kv>(args, table, state.kv_head[group], tile_begin,
                                         state.kv_head[last ? 0 : group + 1],
                                         last ? tile_begin + kAttentionTile : tile_begin, end);
        AttendGroup(args, state, begin < first ? first : begin, state.group_begin[group + 1], tile,
                    tile_begin, widened);
      }
    }
    EndSegment(item, state, segment, first_of_segment, vectors);
  }
}

inline void WriteResult(const AttentionArgs& args, const cpu::AttentionItem& item,
                        const AttentionState& state) {
  const int64_t head_dim = args.pages.head_dim;
  for (int64_t i = 0; i < NumVectors(item); ++i) {
    const float* total = state.total_acc + i * state.padded_dim;
    for (int64_t d = 0; d < head_dim; d += 16) {
      const int64_t n = head_dim - d < 16 ? head_dim - d : 16;
      StorePartial(state.out[i] + d, Div(Load(total + d), Set1(state.total_sum[i])), n);
    }
  }
}

inline void Attention(const AttentionArgs& args, const cpu::AttentionItem& item,
                      cpu::Scratch scratch) {
  AttentionState state;
  float* widened = StartState(args, item, scratch, &state);
  switch (args.pages.type) {
    case KvType::kF32:
      AttendItem<F32Kv>(args, item, state, widened);
      break;
    case KvType::kF16:
      AttendItem<F16Kv>(args, item, state, widened);
      break;
    case KvType::kBf16:
      AttendItem<Bf16Kv>(args, item, state, widened);
      break;
    case KvType::kInt8:
      AttendItem<Int8Kv>(args, item, state, widened);
      break;
  }
  if (item.records == nullptr) {
    WriteResult(args, item, state);
  }
}

inline void JoinAttention(const AttentionArgs& args, const cpu::AttentionItem& item,
                          cpu::Scratch scratch) {
  AttentionState state;
  StartState(args, item, scratch, &state);
  const int64_t vectors = NumVectors(item);
  for (int64_t segment = item.segment_begin; segment < item.segment_end; ++segment) {
    for (int64_t i = 0; i < vectors; i += 16) {
      const int64_t count = vectors - i < 16 ? vectors - i : 16;
      const float* acc[16];
      float sum[16];
      for (int64_t j = 0; j < count; ++j) {
        acc[j] = RecordOf(item, state, segment, i + j);
        state.segment_max[i + j] = acc[j][state.padded_dim];
        sum[j] = acc[j][state.padded_dim + 1];
      }
      JoinVectors(state, i, count, acc, sum);
    }
  }
  WriteResult(args, item, state);
}
