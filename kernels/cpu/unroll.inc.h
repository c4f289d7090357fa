// Unroll<N>([&](auto i) SHOAL_INLINE { ... i() ... }): N copies with i a constant, so that arrays
// of vectors indexed by it live in registers at any optimisation level.

template <int kValue>
struct Int {
  constexpr int operator()() const { return kValue; }
};

template <class F, int... kIndices>
__attribute__((always_inline)) inline void UnrollOver(F f,
                                                      std::integer_sequence<int, kIndices...>) {
  (f(Int<kIndices>{}), ...);
}

template <int kCount, class F>
__attribute__((always_inline)) inline void Unroll(F f) {
  UnrollOver(f, std::make_integer_sequence<int, kCount>{});
}
