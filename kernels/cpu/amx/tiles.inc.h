// AMX: eight tile registers of up to 16 rows of 64 bytes, and the dot products between them. In
// assembly: the compilers' own intrinsics do not say that tile loads read memory.

inline constexpr int kMinTileRows = 8;  // fewer rows of activations go through AVX-512

template <int kTile>
inline void TileZero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
inline void TileLoad(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void TileStore(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
// Sum += A x B, for signed bytes: row r and column n of Sum (int32) gets the sum over g and b of
// byte 4g + b of row r of A times byte 4n + b of row g of B.
template <int kSum, int kA, int kB>
inline void TileDot() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

// The tile registers of a product. For each of kTileSlots slots, which work side by side:
//   sums         [rows][16] int32
//   activations  [rows][32 columns] int8
//   weights      [8 groups of columns][16 outputs][4] int8
inline constexpr int kTileSlots = 2;
template <int kSlot>
inline constexpr int kSumTile = kSlot;
template <int kSlot>
inline constexpr int kActivationTile = 2 + kSlot;
template <int kSlot>
inline constexpr int kWeightTile = 4 + kSlot;

// Shapes the tile registers of this thread for panels of at most panel_rows rows; gives them back
// at the end, as the kernel saves 8 KB more at each switch of a thread whose tiles are in use.
class TileSetUp {
 public:
  TileSetUp(const cpu::CpuWeight& weight, int64_t panel_rows)
      : used_(!IsFloat(weight) && panel_rows >= kMinTileRows) {
    if (!used_) {
      return;
    }
    const uint8_t rows = static_cast<uint8_t>(panel_rows < 16 ? panel_rows : 16);
    Shapes shapes = {};
    shapes.palette = 1;
    for (int slot = 0; slot < kTileSlots; ++slot) {
      shapes.Set(slot, rows, 64);
      shapes.Set(2 + slot, rows, 32);
      shapes.Set(4 + slot, 8, 64);
    }
    asm volatile("ldtilecfg %0" : : "m"(shapes));
  }
  ~TileSetUp() {
    if (used_) {
      asm volatile("tilerelease");
    }
  }

 private:
  // The 64 bytes that ldtilecfg reads.
  struct alignas(64) Shapes {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];

    void Set(int tile, uint8_t num_rows, int bytes) {
      rows[tile] = num_rows;
      row_bytes[tile] = static_cast<uint16_t>(bytes);
    }
  };
  static_assert(sizeof(Shapes) == 64);

  const bool used_;
};
