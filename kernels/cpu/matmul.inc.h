// The product's text, shared by all instruction sets. Contract and order: MatMulArgs in
// kernels/ops.h; layout of weights: packed_layout.h. Each instruction set brings, in dot.inc.h:
//   DotVec, kDotLanes            a vector of 16 (AVX-512, portable) or 8 (AVX2) outputs
//   Weights                      one decoded block: 32 columns of kDotLanes outputs
//   DecodeNibbles, DecodeBytes   from the packed bytes of the block (first byte of these outputs)
//   DotBlock<first, last>        init + the exact integer dot product over column groups [first,
//   last) of four kMaxPanelRows, kFewRowTiles  shapes of register tiles
//
// Rows are worked on in chunks; a chunk is cut into panels of at most kMaxPanelRows rows, and the
// operands of a panel are laid out anew in scratch (q next to each other, sums already times
// -zero), so that a block of a panel is one run of memory. Outside: chunk > segment > tiles > panel
// > leaf > block.

enum class Scale { kF16, kF32, kF32x2 };
enum class Offset { kNone, kF16, kF32 };

template <bool kNibblesV, Scale kScaleV, Offset kOffsetV>
struct QuantFormat {
  static constexpr bool kNibbles = kNibblesV;
  static constexpr Scale kScale = kScaleV;
  static constexpr Offset kOffset = kOffsetV;
  static constexpr int kBlockBytes = kNibbles ? 256 : 512;
  static constexpr int kScaleBytes = kScale == Scale::kF16 ? 32 : kScale == Scale::kF32 ? 64 : 128;
  static constexpr int kOffsetBytes = kOffset == Offset::kF16 ? 32 : 64;
};

// Operands of one panel of rows. Quantised: q [nb][rows][32], the others [nb][rows].
// Float: x [K][rows].
struct Panel {
  const int8_t* q;
  const float* scale;
  const int32_t* start[2];  // -zero * sum of q, of the block or of its two halves
  const float* scaled_sum;  // scale * sum, for types with an offset
  int64_t q_stride;         // bytes from block to block
  const float* x;
};

// Asks for the kBytes that lie kPrefetchAhead further on, across the end of the tile too (tiles
// follow each other). In assembly, as GCC takes a function that only prefetches for one without
// effect.
inline constexpr int kPrefetchAhead = 4096;
template <int kBytes>
__attribute__((always_inline)) inline void Prefetch(const uint8_t* p) {
  Unroll<(kBytes + 63) / 64>([&](auto i) SHOAL_INLINE {
    const uint8_t* ahead = p + kPrefetchAhead + 64 * i();
    asm volatile("prefetcht0 %0" : : "m"(*ahead));
  });
}

template <Scale kScale>
inline DotVec LoadScale(const uint8_t* d, int lane, int half) {
  if constexpr (kScale == Scale::kF16) {
    return LoadDotHalf(reinterpret_cast<const uint16_t*>(d) + lane);
  } else {
    return LoadDot(reinterpret_cast<const float*>(d) + half * 16 + lane);
  }
}

template <Offset kOffset>
inline DotVec LoadOffset(const uint8_t* m, int lane) {
  if constexpr (kOffset == Offset::kF16) {
    return LoadDotHalf(reinterpret_cast<const uint16_t*>(m) + lane);
  } else {
    return LoadDot(reinterpret_cast<const float*>(m) + lane);
  }
}

// acc[r] = fma(d * scale, dot product over column groups [kFirst, kLast), acc[r]) for kCount rows
// from row kRow of the block on, at `at` in the panel's arrays. Their dot products go side by side,
// as each one is a chain of dependent instructions.
template <int kFirst, int kLast, int kRow, int kCount>
__attribute__((always_inline)) inline void AddDots(const Weights& w, DotVec d, const int8_t* q,
                                                   const int32_t* start, const float* scale,
                                                   DotVec* acc) {
  DotVec dots[kCount];
  DotRows<kFirst, kLast, kCount>(w, q + kRow * 32, start + kRow, dots);
  Unroll<kCount>([&](auto i) SHOAL_INLINE {
    constexpr int kAt = kRow + i();
    acc[kAt] = FmaDot(MulDot(d, SetDot(scale[kAt])), dots[i()], acc[kAt]);
  });
}

// One decoded block against the panel's rows, in the order of MatMulArgs.
template <class Format, int kRows>
__attribute__((always_inline)) inline void BlockTimesRows(const Weights& w, const uint8_t* d,
                                                          const uint8_t* m, int lane,
                                                          const Panel& panel, int64_t block,
                                                          DotVec* acc) {
  constexpr int kGroups = (kRows + kSideBySide - 1) / kSideBySide;
  const int8_t* q = panel.q + block * panel.q_stride;
  const int64_t at = block * kRows;
  const float* scale = panel.scale + at;
  const DotVec d0 = LoadScale<Format::kScale>(d, lane, 0);
  Unroll<kGroups>([&](auto group) SHOAL_INLINE {
    constexpr int kRow = group() * kSideBySide;
    constexpr int kCount = kRows - kRow < kSideBySide ? kRows - kRow : kSideBySide;
    if constexpr (Format::kScale == Scale::kF32x2) {
      const DotVec d1 = LoadScale<Format::kScale>(d, lane, 1);
      AddDots<0, 4, kRow, kCount>(w, d0, q, panel.start[0] + at, scale, acc);
      AddDots<4, 8, kRow, kCount>(w, d1, q, panel.start[1] + at, scale, acc);
    } else {
      AddDots<0, 8, kRow, kCount>(w, d0, q, panel.start[0] + at, scale, acc);
    }
  });
  if constexpr (Format::kOffset != Offset::kNone) {
    const DotVec offset = LoadOffset<Format::kOffset>(m, lane);
    Unroll<kRows>([&](auto r) SHOAL_INLINE {
      acc[r()] = FmaDot(offset, SetDot(panel.scaled_sum[at + r()]), acc[r()]);
    });
  }
}

// Blocks [begin, end) of kTiles tiles from `tile` on: out [kTiles][kRows][16].
template <class Format, int kTiles, int kRows>
void QuantLeaf(const cpu::CpuWeight& weight, const uint8_t* tile, const Panel& panel, int64_t begin,
               int64_t end, float* out) {
  for (int lane = 0; lane < 16; lane += kDotLanes) {
    DotVec acc[kTiles][kRows];
    Unroll<kTiles>([&](auto t) SHOAL_INLINE {
      Unroll<kRows>([&](auto r) SHOAL_INLINE { acc[t()][r()] = SetDot(0.0f); });
    });
    for (int64_t block = begin; block < end; ++block) {
      Unroll<kTiles>([&](auto t) SHOAL_INLINE {
        const uint8_t* at = tile + t() * weight.tile_bytes;
        const uint8_t* q = at + block * Format::kBlockBytes + lane * 4;
        const uint8_t* d = at + weight.d_offset + block * Format::kScaleBytes;
        const uint8_t* m = at + weight.m_offset + block * Format::kOffsetBytes;
        Prefetch<Format::kBlockBytes>(q);
        Weights w;
        if constexpr (Format::kNibbles) {
          DecodeNibbles(q, &w);
        } else {
          DecodeBytes(q, &w);
        }
        BlockTimesRows<Format, kRows>(w, d, m, lane, panel, block, acc[t()]);
      });
    }
    Unroll<kTiles>([&](auto t) SHOAL_INLINE {
      Unroll<kRows>([&](auto r) SHOAL_INLINE {
        StoreDot(out + (t() * kRows + r()) * 16 + lane, acc[t()][r()]);
      });
    });
  }
}

struct LoadF32 {
  static constexpr int kBytes = 4;
  static DotVec Load(const uint8_t* p) { return LoadDot(reinterpret_cast<const float*>(p)); }
};
struct LoadF16 {
  static constexpr int kBytes = 2;
  static DotVec Load(const uint8_t* p) { return LoadDotHalf(reinterpret_cast<const uint16_t*>(p)); }
};
struct LoadBf16 {
  static constexpr int kBytes = 2;
  static DotVec Load(const uint8_t* p) { return LoadDotBf16(reinterpret_cast<const uint16_t*>(p)); }
};

// Columns [begin, end) of kTiles tiles of a float weight.
template <class Format, int kTiles, int kRows>
void FloatLeaf(const cpu::CpuWeight& weight, const uint8_t* tile, const Panel& panel, int64_t begin,
               int64_t end, float* out) {
  for (int lane = 0; lane < 16; lane += kDotLanes) {
    DotVec acc[kTiles][kRows];
    Unroll<kTiles>([&](auto t) SHOAL_INLINE {
      Unroll<kRows>([&](auto r) SHOAL_INLINE { acc[t()][r()] = SetDot(0.0f); });
    });
    for (int64_t k = begin; k < end; ++k) {
      DotVec w[kTiles];
      Unroll<kTiles>([&](auto t) SHOAL_INLINE {
        const uint8_t* at = tile + t() * weight.tile_bytes + (k * 16 + lane) * Format::kBytes;
        Prefetch<16 * Format::kBytes>(at);
        w[t()] = Format::Load(at);
      });
      Unroll<kRows>([&](auto r) SHOAL_INLINE {
        const DotVec x = SetDot(panel.x[k * kRows + r()]);
        Unroll<kTiles>([&](auto t)
                           SHOAL_INLINE { acc[t()][r()] = FmaDot(w[t()], x, acc[t()][r()]); });
      });
    }
    Unroll<kTiles>([&](auto t) SHOAL_INLINE {
      Unroll<kRows>([&](auto r) SHOAL_INLINE {
        StoreDot(out + (t() * kRows + r()) * 16 + lane, acc[t()][r()]);
      });
    });
  }
}

using LeafFunction = void (*)(const cpu::CpuWeight& weight, const uint8_t* tile, const Panel& panel,
                              int64_t begin, int64_t end, float* out);

// The leaf functions of one weight kind for a panel of `rows` rows.
struct LeafKernels {
  LeafFunction one[kMaxPanelRows + 1];   // one tile a call
  LeafFunction many[kMaxPanelRows + 1];  // TilesAtOnce(rows) tiles a call
};
static_assert(kMaxFloatPanelRows <= kMaxPanelRows);

template <bool kFloat>
constexpr int TilesAtOnce(int rows) {
  if (kFloat) {
    return rows == 1 ? kFloatTiles : kFloatTiles > 1 ? 2 : 1;
  }
  return rows == 1 ? kFewRowTiles : rows <= 4 ? (kFewRowTiles + 1) / 2 : 1;
}

template <class Format, bool kFloat, int kTiles, int kRows>
constexpr LeafFunction LeafOf() {
  if constexpr (kFloat) {
    return FloatLeaf<Format, kTiles, kRows>;
  } else {
    return QuantLeaf<Format, kTiles, kRows>;
  }
}

template <class Format, bool kFloat, int... kIndices>
constexpr LeafKernels KernelsOver(std::integer_sequence<int, kIndices...>) {
  return {{nullptr, LeafOf<Format, kFloat, 1, kIndices + 1>()...},
          {nullptr, LeafOf<Format, kFloat, TilesAtOnce<kFloat>(kIndices + 1), kIndices + 1>()...}};
}

template <class Format, bool kFloat>
constexpr LeafKernels KernelsOf() {
  constexpr int kRows = kFloat ? kMaxFloatPanelRows : kMaxPanelRows;
  return KernelsOver<Format, kFloat>(std::make_integer_sequence<int, kRows>{});
}

// Indexed by WeightKind.
constexpr LeafKernels kLeafKernels[cpu::kNumWeightKinds] = {
    KernelsOf<QuantFormat<true, Scale::kF16, Offset::kNone>, false>(),
    KernelsOf<QuantFormat<true, Scale::kF16, Offset::kF16>, false>(),
    KernelsOf<QuantFormat<true, Scale::kF32, Offset::kF32>, false>(),
    KernelsOf<QuantFormat<false, Scale::kF16, Offset::kNone>, false>(),
    KernelsOf<QuantFormat<false, Scale::kF16, Offset::kF16>, false>(),
    KernelsOf<QuantFormat<false, Scale::kF32, Offset::kF32>, false>(),
    KernelsOf<QuantFormat<false, Scale::kF32x2, Offset::kNone>, false>(),
    KernelsOf<LoadF32, true>(),
    KernelsOf<LoadF16, true>(),
    KernelsOf<LoadBf16, true>(),
};

inline const cpu::CpuWeight& WeightOf(const PackedWeight* weight) {
  return *reinterpret_cast<const cpu::CpuWeight*>(weight);
}

inline bool IsFloat(const cpu::CpuWeight& weight) { return weight.kind >= cpu::WeightKind::kF32; }

// A chunk of rows, cut into panels as even as can be, and its operands in scratch.
struct Chunk {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t num_quant_panels = 0;
  int64_t num_float_panels = 0;
  int8_t* q = nullptr;
  float* scale = nullptr;
  int32_t* start[2] = {};
  float* scaled_sum = nullptr;
  float* x = nullptr;
  // What the operands are laid out for.
  bool has_q = false;
  bool has_x = false;
  int32_t zero = 0;
  bool has_start = false;
  bool halves = false;
};

// The panels of a chunk, for quantised or for float weights.
struct Panels {
  int64_t rows;
  int64_t count;
  int64_t Begin(int64_t panel) const { return rows * panel / count; }
};
inline Panels QuantPanels(const Chunk& chunk) { return {chunk.rows, chunk.num_quant_panels}; }
inline Panels FloatPanels(const Chunk& chunk) { return {chunk.rows, chunk.num_float_panels}; }

// Lays out scale, scale * sum, and q when the chunk has more than one row.
inline void LayOutQuantized(const QuantizedRows& in, Chunk* chunk) {
  const int64_t num_blocks = in.width / 32;
  const Panels panels = QuantPanels(*chunk);
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t begin = panels.Begin(panel);
    const int64_t rows = panels.Begin(panel + 1) - begin;
    for (int64_t block = 0; block < num_blocks; ++block) {
      const int64_t from = block * in.rows + chunk->row_begin + begin;
      const int64_t to = begin * num_blocks + block * rows;
      memcpy(chunk->q + to * 32, in.q + from * 32, rows * 32);
      for (int64_t r = 0; r < rows; ++r) {
        chunk->scale[to + r] = in.scale[from + r];
        chunk->scaled_sum[to + r] = in.scale[from + r] * static_cast<float>(in.sum[from + r]);
      }
    }
  }
  chunk->has_q = true;
}

// Lays out -zero * sum of each block, or of each half block.
inline void LayOutStarts(const QuantizedRows& in, int32_t zero, bool halves, Chunk* chunk) {
  const int64_t num_blocks = in.width / 32;
  const Panels panels = QuantPanels(*chunk);
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t begin = panels.Begin(panel);
    const int64_t rows = panels.Begin(panel + 1) - begin;
    for (int64_t block = 0; block < num_blocks; ++block) {
      const int64_t from = block * in.rows + chunk->row_begin + begin;
      const int64_t to = begin * num_blocks + block * rows;
      for (int64_t r = 0; r < rows; ++r) {
        int32_t sum = in.sum[from + r];
        if (halves) {
          int32_t first = 0;
          for (int i = 0; i < 16; ++i) {
            first += in.q[(from + r) * 32 + i];
          }
          chunk->start[1][to + r] = -zero * (sum - first);
          sum = first;
        }
        chunk->start[0][to + r] = -zero * sum;
      }
    }
  }
  chunk->has_start = true;
  chunk->zero = zero;
  chunk->halves = halves;
}

inline void LayOutFloat(const MatMulArgs& args, int64_t cols, Chunk* chunk) {
  const Panels panels = FloatPanels(*chunk);
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t begin = panels.Begin(panel);
    const int64_t rows = panels.Begin(panel + 1) - begin;
    const float* x = args.x + (chunk->row_begin + begin) * args.x_stride;
    float* to = chunk->x + begin * cols;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < cols; ++k) {
        to[k * rows + r] = x[r * args.x_stride + k];
      }
    }
  }
  chunk->has_x = true;
}

inline void LayOut(const MatMulArgs& args, const cpu::CpuWeight& weight, Chunk* chunk) {
  if (IsFloat(weight)) {
    if (!chunk->has_x) {
      LayOutFloat(args, weight.cols, chunk);
    }
    return;
  }
  if (!chunk->has_q) {
    LayOutQuantized(args.xq, chunk);
  }
  const bool halves = weight.kind == cpu::WeightKind::kByteF32x2;
  if (!chunk->has_start || chunk->zero != weight.zero || chunk->halves != halves) {
    LayOutStarts(args.xq, weight.zero, halves, chunk);
  }
}

// Divides the scratch among the operands of `rows` rows; packed_layout.h says how much that takes.
inline Chunk NewChunk(const MatMulArgs& args, int64_t cols, int64_t row_begin, int64_t rows,
                      cpu::Scratch scratch) {
  Chunk chunk;
  chunk.row_begin = row_begin;
  chunk.rows = rows;
  chunk.num_quant_panels = (rows + kMaxPanelRows - 1) / kMaxPanelRows;
  chunk.num_float_panels = (rows + kMaxFloatPanelRows - 1) / kMaxFloatPanelRows;
  const int64_t values = cpu::kChunkRows * ((cols + 31) / 32);
  uint8_t* at = scratch.data;
  chunk.scale = reinterpret_cast<float*>(at);
  chunk.scaled_sum = chunk.scale + values;
  chunk.start[0] = reinterpret_cast<int32_t*>(chunk.scaled_sum + values);
  chunk.start[1] = chunk.start[0] + values;
  chunk.q = reinterpret_cast<int8_t*>(chunk.start[1] + values);
  chunk.x = reinterpret_cast<float*>(chunk.q + values * 32);
  return chunk;
}

// The operands of `rows` rows from row `begin` of the chunk on.
inline Panel PanelOf(const Chunk& chunk, int64_t begin, int64_t rows, int64_t cols) {
  const int64_t at = begin * (cols / 32);
  Panel result = {};
  result.q = chunk.q + at * 32;
  result.q_stride = rows * 32;
  result.scale = chunk.scale + at;
  result.scaled_sum = chunk.scaled_sum + at;
  result.start[0] = chunk.start[0] + at;
  result.start[1] = chunk.start[1] + at;
  result.x = chunk.x + begin * cols;
  return result;
}

// Where results of a group of tiles go.
struct Output {
  const MatMulArgs* args;
  int64_t row;     // first row of the panel
  int64_t rows;    // of the panel
  int64_t column;  // of out
  int64_t lanes;   // outputs that exist from `column` on
};

// Writes kTiles x rows x 16 values of one root.
inline void StoreRoot(const Output& to, int64_t tiles, int64_t root, const float* values) {
  const MatMulArgs& args = *to.args;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t left = to.lanes - 16 * t;
    const int64_t n = left < 16 ? left : 16;
    const int64_t column = to.column + 16 * t;
    const Vec bias = args.bias == nullptr ? Zero() : LoadPartial(args.bias + column, n);
    for (int64_t r = 0; r < to.rows; ++r) {
      Vec v = Load(values + (t * to.rows + r) * 16);
      if (args.bias != nullptr) {
        v = Add(v, bias);
      }
      float* out = args.out + root * args.root_stride + (to.row + r) * args.out_stride + column;
      if (n == 16) {
        Store(out, v);
      } else {
        StorePartial(out, v, n);
      }
    }
  }
}

// A group of tiles times a panel: evaluates the leaves, joins them by the steps, writes the roots.
inline void TilesTimesPanel(const cpu::CpuWeight& weight, const uint8_t* tile, int64_t tiles,
                            LeafFunction leaf, const Panel& panel, const Output& to) {
  constexpr int kMaxValues = kMaxTileRows * 16;
  alignas(64) float values[kMaxLeaves][kMaxValues];
  const int64_t unit = IsFloat(weight) ? 1 : 32;
  const KSplit& split = to.args->split;
  if (split.num_leaves <= 1) {
    leaf(weight, tile, panel, 0, weight.cols / unit, values[0]);
    StoreRoot(to, tiles, 0, values[0]);
    return;
  }
  int64_t begin = 0;
  for (int32_t i = 0; i < split.num_leaves; ++i) {
    leaf(weight, tile, panel, begin, split.leaf_ends[i] / unit, values[i]);
    begin = split.leaf_ends[i] / unit;
  }
  for (int32_t i = 0; i < split.num_steps; ++i) {
    float* dst = values[split.steps[i].dst];
    const float* src = values[split.steps[i].src];
    for (int64_t v = 0; v < tiles * to.rows * 16; v += 16) {
      Store(dst + v, Add(Load(dst + v), Load(src + v)));
    }
  }
  for (int32_t root = 0; root < split.num_roots; ++root) {
    StoreRoot(to, tiles, root, values[split.roots[root]]);
  }
}

// Tiles [begin, end) of one segment times all panels of the chunk.
inline void SegmentTimesChunk(const MatMulArgs& args, const cpu::CpuWeight& weight,
                              int64_t first_column, int64_t begin, int64_t end,
                              const Chunk& chunk) {
  const LeafKernels& kernels = kLeafKernels[static_cast<int>(weight.kind)];
  const Panels panels = IsFloat(weight) ? FloatPanels(chunk) : QuantPanels(chunk);
  const int64_t panel_rows = panels.Begin(1);  // panels differ by one row at most
  const int64_t at_once =
      IsFloat(weight) ? TilesAtOnce<true>(panel_rows) : TilesAtOnce<false>(panel_rows);
  for (int64_t tile = begin; tile < end;) {
    const int64_t tiles = end - tile < at_once ? 1 : at_once;
    const uint8_t* data = weight.data + tile * weight.tile_bytes;
    for (int64_t p = 0; p < panels.count; ++p) {
      const int64_t panel_begin = panels.Begin(p);
      const int64_t rows = panels.Begin(p + 1) - panel_begin;
      const Panel panel = PanelOf(chunk, panel_begin, rows, weight.cols);
      Output to = {&args, chunk.row_begin + panel_begin, rows, first_column + tile * 16,
                   weight.rows - tile * 16};
      const int64_t own = IsFloat(weight) ? TilesAtOnce<true>(rows) : TilesAtOnce<false>(rows);
      if (tiles > 1 && own == tiles) {
        TilesTimesPanel(weight, data, tiles, kernels.many[rows], panel, to);
        continue;
      }
      for (int64_t t = 0; t < tiles; ++t) {
        TilesTimesPanel(weight, data + t * weight.tile_bytes, 1, kernels.one[rows], panel, to);
        to.column += 16;
        to.lanes -= 16;
      }
    }
    tile += tiles;
  }
}

inline void MatMulSlice(const MatMulArgs& args, int64_t tile_begin, int64_t tile_end,
                        cpu::Scratch scratch) {
  const int64_t cols = WeightOf(args.segments[0]).cols;
  for (int64_t row = 0; row < args.rows; row += cpu::kChunkRows) {
    const int64_t left = args.rows - row;
    const int64_t rows = left < cpu::kChunkRows ? left : cpu::kChunkRows;
    Chunk chunk = NewChunk(args, cols, row, rows, scratch);
    int64_t first_tile = 0;
    int64_t first_column = 0;
    for (int32_t s = 0; s < args.num_segments; ++s) {
      const cpu::CpuWeight& weight = WeightOf(args.segments[s]);
      const int64_t begin = tile_begin > first_tile ? tile_begin - first_tile : 0;
      const int64_t rest = tile_end - first_tile;
      const int64_t end = rest < weight.num_tiles ? rest : weight.num_tiles;
      if (begin < end) {
        LayOut(args, weight, &chunk);
        SegmentTimesChunk(args, weight, first_column, begin, end, chunk);
      }
      first_tile += weight.num_tiles;
      first_column += weight.rows;
    }
  }
}
