// Operands of the product, laid out anew in the thread's scratch. Rows are worked on in chunks; a
// chunk is cut into panels of at most kMaxPanelRows rows, and the operands of a panel lie block by
// block (q next to each other, sums already times -zero), so that a block of a panel is one run of
// memory.

inline const cpu::CpuWeight& WeightOf(const PackedWeight* weight) {
  return *reinterpret_cast<const cpu::CpuWeight*>(weight);
}

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
  const bool halves = weight.kind == cpu::WeightKind::kQ6_K;
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
  result.first = begin == 0;
  return result;
}
