// exp on 16 lanes, from operations that round the same on every instruction set.

inline constexpr float kMagic =
    12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even

// exp(x) within 1 ulp for -87.33 <= x <= 88; 0 below (no subnormal results), infinity above; NaN
// stays. ExpUpTo88 is the same for x <= 88.
//
//   n = round(x / ln 2);  r = x - n ln 2 (ln 2 in two parts);  exp(x) = 2^n (1 + r + r^2 p(r)),
//   p of degree 4 fitted by Remez exchange on |r| <= ln(2)/2 (relative error 6.5e-9).
inline Vec ExpUpTo88(Vec x) {
  const Vec t = Fma(x, Set1(1.44269504f), Set1(kMagic));
  const Vec n = Sub(t, Set1(kMagic));
  Vec r = Fma(n, Set1(-0x1.62e400p-1f), x);  // 17 bits of ln 2: n times it is exact
  r = Fma(n, Set1(-0x1.7f7d1cp-20f), r);     // the rest of ln 2
  Vec p = Set1(0x1.6c8302p-10f);
  p = Fma(p, r, Set1(0x1.12256ep-7f));
  p = Fma(p, r, Set1(0x1.5555bep-5f));
  p = Fma(p, r, Set1(0x1.5554b2p-3f));
  p = Fma(p, r, Set1(0.5f));
  p = Fma(Mul(r, r), p, r);
  const Vec result = Mul(Add(p, Set1(1.0f)), Pow2FromMagic(t));
  return SelectLess(x, Set1(-87.33f), Zero(), result);
}

inline Vec Exp(Vec x) { return SelectLess(Set1(88.0f), x, Set1(__builtin_inff()), ExpUpTo88(x)); }
