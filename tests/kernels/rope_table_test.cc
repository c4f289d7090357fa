#include "kernels/reference/rope_table.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/kernel_fixture.h"

namespace shoal::kernels {
namespace {

// Compares entries of some positions with the C library's long double.
void ExpectExact(int max_positions, int rope_dim, double base, const std::vector<float>& factors) {
  std::vector<float> table(static_cast<size_t>(max_positions) * rope_dim);
  BuildRopeTable(max_positions, rope_dim, base, factors.empty() ? nullptr : factors.data(),
                 table.data());
  for (int position = 0; position < max_positions;
       position += position < 300 ? 1 : max_positions / 97 + 1) {
    for (int i = 0; i < rope_dim / 2; ++i) {
      const long double exponent = -2.0L * i / rope_dim;
      const long double factor = factors.empty() ? 1.0L : factors[i];
      const long double angle = position * (powl(base, exponent) / factor);
      const float* entry = &table[static_cast<size_t>(position) * rope_dim + 2 * i];
      // Half a unit in the last place, and what a relative 3e-16 of the angle does.
      const double slack = static_cast<double>(angle) * 1e-15;
      ASSERT_NEAR(entry[0], static_cast<double>(cosl(angle)), 3.1e-8 + slack)
          << position << " " << i;
      ASSERT_NEAR(entry[1], static_cast<double>(sinl(angle)), 3.1e-8 + slack)
          << position << " " << i;
    }
  }
}

TEST(RopeTableTest, IsExactForUsualBases) {
  ExpectExact(2000, 64, 10000.0, {});
  ExpectExact(40000, 128, 1e6, {});
  ExpectExact(131072, 16, 500000.0, {});
}

TEST(RopeTableTest, DividesByFrequencyFactors) {
  ExpectExact(500, 8, 10000.0, {1.0f, 2.5f, 8.0f, 32.0f});
}

TEST(RopeTableTest, PositionZeroDoesNotTurn) {
  std::vector<float> table(8);
  BuildRopeTable(1, 8, 10000.0, nullptr, table.data());
  EXPECT_EQ(table, (std::vector<float>{1, 0, 1, 0, 1, 0, 1, 0}));
}

// Fixed bits: the table is the same in every build and on every machine.
TEST(RopeTableTest, HasTheSameBitsEverywhere) {
  std::vector<float> table(4096 * 64);
  BuildRopeTable(4096, 64, 10000.0, nullptr, table.data());
  EXPECT_EQ(HashOfBits(table), 0xbaa89a8416089d8au);
}

}  // namespace
}  // namespace shoal::kernels
