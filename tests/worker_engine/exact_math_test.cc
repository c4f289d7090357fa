#include "worker/engine/exact_math.h"

#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "worker/engine/noise.h"

namespace shoal::worker {
namespace {

TEST(ExactMathTest, ExpAndLogAgreeWithTheLibraryToARoundingOrTwo) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-700, 700);
  for (int i = 0; i < 200000; ++i) {
    const double x = exponent(random);
    EXPECT_NEAR(ExactExp(x) / std::exp(x), 1.0, 2e-15) << x;
    const double y = std::exp(x / 2);
    EXPECT_NEAR(ExactLog(y), std::log(y), 1e-15 + 1e-15 * std::abs(std::log(y))) << y;
  }
  EXPECT_EQ(ExactExp(0), 1.0);
  EXPECT_EQ(ExactLog(1), 0.0);
  EXPECT_EQ(ExactExp(-1000), 0.0);
  EXPECT_EQ(ExactExp(1000), std::numeric_limits<double>::infinity());
}

TEST(GumbelNoiseTest, UpperBoundHoldsAndIsTight) {
  std::mt19937 random(2);
  for (int i = 0; i < 100000; ++i) {
    // Half of the cases near 1, where the bound matters.
    const uint32_t bits = i % 2 ? random() : ~(random() >> (random() % 32));
    const double noise = GumbelNoise::FromBits(bits);
    EXPECT_LE(noise, GumbelNoise::UpperBound(bits)) << bits;
  }
  EXPECT_LE(GumbelNoise::FromBits(~0u), GumbelNoise::UpperBound(~0u));
  EXPECT_TRUE(std::isfinite(GumbelNoise::FromBits(0)));
}

TEST(GumbelNoiseTest, HasTheMomentsOfTheGumbelDistribution) {
  const GumbelNoise noise(42, 0, 7);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 200000;
  for (int id = 0; id < kCount; ++id) {
    const double x = GumbelNoise::FromBits(noise.Bits(id));
    sum += x;
    squares += x * x;
  }
  const double mean = sum / kCount;
  EXPECT_NEAR(mean, 0.57722, 0.01);                                    // Euler's constant
  EXPECT_NEAR(squares / kCount - mean * mean, M_PI * M_PI / 6, 0.03);  // pi^2 / 6
}

TEST(GumbelNoiseTest, EveryKeyMatters) {
  const uint32_t bits = GumbelNoise(1, 2, 3).Bits(4);
  EXPECT_NE(bits, GumbelNoise(2, 2, 3).Bits(4));
  EXPECT_NE(bits, GumbelNoise(1, 3, 3).Bits(4));
  EXPECT_NE(bits, GumbelNoise(1, 2, 4).Bits(4));
  EXPECT_NE(bits, GumbelNoise(1, 2, 3).Bits(5));
}

}  // namespace
}  // namespace shoal::worker
