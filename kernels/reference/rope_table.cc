#include "kernels/reference/rope_table.h"

#include <cstdint>
#include <cstring>
#include <vector>

namespace shoal::kernels {
namespace {

double FromBits(uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

uint64_t ToBits(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

constexpr double kLn2High = 0x1.62e42fee00000p-1;  // 33 bits: n times it is exact
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// To the nearest integer, ties to even, for |x| < 2^51.
double Round(double x) {
  constexpr double kMagic = 0x1.8p52;
  const double shifted = x + kMagic;
  return shifted - kMagic;
}

// ln(x) for a normal x > 0: x = 2^n m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m +
// 1)).
double Log(double x) {
  const uint64_t bits = ToBits(x);
  int64_t n = static_cast<int64_t>(bits >> 52) - 1023;
  double m = FromBits((bits & 0xfffffffffffff) | 0x3ff0000000000000);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++n;
  }
  const double s = (m - 1) / (m + 1);  // |s| < 0.172
  const double s2 = s * s;
  double series = 0;
  for (int k = 27; k >= 3; k -= 2) {
    series = (series + 1.0 / k) * s2;
  }
  const double log_m = 2 * s + 2 * s * series;
  return static_cast<double>(n) * kLn2High + (log_m + static_cast<double>(n) * kLn2Low);
}

// exp(x) for |x| < 700: Taylor series after taking out powers of two.
double Exp(double x) {
  const double n = Round(x * 1.4426950408889634);
  const double r = (x - n * kLn2High) - n * kLn2Low;  // |r| < 0.347
  double sum = 1;
  for (int k = 17; k >= 1; --k) {
    sum = 1 + sum * r / k;
  }
  return sum * FromBits(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52);
}

struct CosSin {
  double cosine;
  double sine;
};

// Cosine and sine for 0 <= x < 1.6e6. x = n pi/2 + r with pi/2 in three parts, the first two of 33
// bits: n (20 bits) times those is exact. Then Taylor series on |r| <= pi/4.
CosSin CosineAndSine(double x) {
  constexpr double kPart1 = 0x1.921fb54400000p+0;
  constexpr double kPart2 = 0x1.0b4611a600000p-34;
  constexpr double kPart3 = 0x1.3198a2e037073p-69;
  const double n = Round(x * 0.6366197723675814);
  const double r = ((x - n * kPart1) - n * kPart2) - n * kPart3;
  const double r2 = r * r;
  double cosine = 1;
  double sine = 1;
  for (int k = 20; k >= 2; k -= 2) {
    cosine = 1 - cosine * r2 / (k * (k - 1));
    sine = 1 - sine * r2 / (k * (k + 1));
  }
  sine *= r;
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      return {cosine, sine};
    case 1:
      return {-sine, cosine};
    case 2:
      return {-cosine, -sine};
    default:
      return {sine, -cosine};
  }
}

}  // namespace

void BuildRopeTable(int max_positions, int rope_dim, double base, const float* freq_factors,
                    float* out) {
  const double log_base = Log(base);
  std::vector<double> frequency(rope_dim / 2);
  for (int i = 0; i < rope_dim / 2; ++i) {
    frequency[i] = Exp(-2.0 * i / rope_dim * log_base);
    if (freq_factors != nullptr) {
      frequency[i] /= freq_factors[i];
    }
  }
  for (int64_t position = 0; position < max_positions; ++position) {
    for (int i = 0; i < rope_dim / 2; ++i) {
      const CosSin turn = CosineAndSine(static_cast<double>(position) * frequency[i]);
      out[position * rope_dim + 2 * i] = static_cast<float>(turn.cosine);
      out[position * rope_dim + 2 * i + 1] = static_cast<float>(turn.sine);
    }
  }
}

}  // namespace shoal::kernels
