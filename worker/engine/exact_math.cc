#include "worker/engine/exact_math.h"

#include <bit>
#include <cstdint>
#include <limits>

namespace shoal::worker {
namespace {

constexpr double kLn2High = 6.93147180369123816490e-01;  // ln 2 in two parts: k * high is exact
constexpr double kLn2Low = 1.90821492927058770002e-10;
constexpr double kInverseLn2 = 1.44269504088896338700e+00;

}  // namespace

double ExactExp(double x) {
  if (x > 709.0) return std::numeric_limits<double>::infinity();
  if (x < -708.0) return 0.0;
  // x = k ln 2 + r with |r| <= ln2 / 2; e^r by its Taylor series, whose 14th term is below 1e-17.
  const double scaled = x * kInverseLn2;
  const int64_t k = static_cast<int64_t>(scaled + (scaled < 0 ? -0.5 : 0.5));
  const double kd = static_cast<double>(k);
  const double r = (x - kd * kLn2High) - kd * kLn2Low;
  double sum = 1.0;
  for (int n = 13; n >= 1; --n) sum = 1.0 + sum * r / n;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

double ExactLog(double x) {
  // x = 2^k m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(f), f = (m - 1) / (m + 1), |f| <
  // 0.172.
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t k = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.41421356237309504880) {
    m *= 0.5;
    ++k;
  }
  const double f = (m - 1.0) / (m + 1.0);
  const double f2 = f * f;
  double sum = 0.0;
  for (int n = 21; n >= 1; n -= 2) sum = sum * f2 + 1.0 / n;
  const double kd = static_cast<double>(k);
  return kd * kLn2High + (2.0 * f * sum + kd * kLn2Low);
}

}  // namespace shoal::worker
