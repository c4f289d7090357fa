// A thread's slice of the product: chunk of rows > segment > tiles > panel > leaf > block.

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

// What an instruction set sets up on this thread before products of at most `panel_rows` rows with
// `weight`, and takes back afterwards: most have nothing to do.
struct NoSetUp {
  NoSetUp(const cpu::CpuWeight& weight, int64_t panel_rows) {}
};

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

// Tiles [begin, end) of one segment times one panel.
inline void TilesTimesRows(const MatMulArgs& args, const cpu::CpuWeight& weight,
                           int64_t first_column, int64_t begin, int64_t end, const Chunk& chunk,
                           int64_t panel_begin, int64_t rows) {
  const LeafKernels& kernels = kLeafKernels[static_cast<int>(weight.kind)];
  const int64_t at_once = IsFloat(weight) ? TilesAtOnce<true>(rows) : TilesAtOnce<false>(rows);
  const Panel panel = PanelOf(chunk, panel_begin, rows, weight.cols);
  for (int64_t tile = begin; tile < end;) {
    const int64_t tiles = end - tile < at_once ? 1 : at_once;
    const Output to = {&args, chunk.row_begin + panel_begin, rows, first_column + tile * 16,
                       weight.rows - tile * 16};
    TilesTimesPanel(weight, weight.data + tile * weight.tile_bytes, tiles,
                    tiles == 1 ? kernels.one[rows] : kernels.many[rows], panel, to);
    tile += tiles;
  }
}

// Several panels take turns over as many tiles as stay in the second-level cache meanwhile, so that
// a panel's operands stay in the first.
inline constexpr int64_t kGroupBytes = int64_t{256} << 10;

// Tiles [begin, end) of one segment times all panels of the chunk.
template <class SetUp>
void SegmentTimesChunk(const MatMulArgs& args, const cpu::CpuWeight& weight, int64_t first_column,
                       int64_t begin, int64_t end, const Chunk& chunk) {
  const Panels panels = IsFloat(weight) ? FloatPanels(chunk) : QuantPanels(chunk);
  int64_t group = end - begin;
  if (panels.count > 1) {
    group = kGroupBytes / weight.tile_bytes > 0 ? kGroupBytes / weight.tile_bytes : 1;
  }
  // (Panels differ by one row at most.)
  const SetUp set_up(weight, panels.Begin(1) + (panels.count > 1 ? 1 : 0));
  for (int64_t tile = begin; tile < end; tile += group) {
    const int64_t group_end = end - tile < group ? end : tile + group;
    for (int64_t p = 0; p < panels.count; ++p) {
      TilesTimesRows(args, weight, first_column, tile, group_end, chunk, panels.Begin(p),
                     panels.Begin(p + 1) - panels.Begin(p));
    }
  }
}

template <class SetUp>
void MatMulSlice(const MatMulArgs& args, int64_t tile_begin, int64_t tile_end,
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
        SegmentTimesChunk<SetUp>(args, weight, first_column, begin, end, chunk);
      }
      first_tile += weight.num_tiles;
      first_column += weight.rows;
    }
  }
}
