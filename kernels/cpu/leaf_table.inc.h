// The leaf functions of every weight kind and panel size.

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
    return QuantLeafChoice<Format, kTiles, kRows>::kFunction;
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
    KernelsOf<QuantFormat<4, Scales::kHalf>, false>(),
    KernelsOf<QuantFormat<4, Scales::kHalfOffset>, false>(),
    KernelsOf<QuantFormat<4, Scales::kSuperOffset>, false>(),
    KernelsOf<QuantFormat<5, Scales::kHalf>, false>(),
    KernelsOf<QuantFormat<5, Scales::kHalfOffset>, false>(),
    KernelsOf<QuantFormat<5, Scales::kSuperOffset>, false>(),
    KernelsOf<QuantFormat<6, Scales::kSuperHalves>, false>(),
    KernelsOf<QuantFormat<8, Scales::kHalf>, false>(),
    KernelsOf<LoadF32, true>(),
    KernelsOf<LoadF16, true>(),
    KernelsOf<LoadBf16, true>(),
};
