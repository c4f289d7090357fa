#include "kernels/quant/float16.h"

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace shoal::kernels {
namespace {

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

static_assert(F32ToF16(1.0f) == 0x3c00 && F16ToF32(0x3c00) == 1.0f);

TEST(Float16Test, EveryHalfSurvivesTheWayThroughFloat) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = F16ToF32(static_cast<uint16_t>(half));
    const bool signaling = std::isnan(value) && (half & 0x200) == 0;
    ASSERT_EQ(F32ToF16(value), signaling ? half | 0x200 : half) << std::hex << half;
  }
}

TEST(Float16Test, KnownValues) {
  EXPECT_EQ(F16ToF32(0x0001), 0x1p-24f);
  EXPECT_EQ(F16ToF32(0x03ff), 1023 * 0x1p-24f);
  EXPECT_EQ(F16ToF32(0x0400), 0x1p-14f);
  EXPECT_EQ(F16ToF32(0x7bff), 65504.0f);
  EXPECT_EQ(Bits(F16ToF32(0x8000)), 0x80000000u);
  EXPECT_EQ(F16ToF32(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(F32ToF16(65519.9f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(0x1p-25f), 0x0000);             // a tie goes to even
  EXPECT_EQ(F32ToF16(0x1.000002p-25f), 0x0001);      // just above it
  EXPECT_EQ(F32ToF16(3 * 0x1p-25f), 0x0002);         // 1.5 units: a tie
  EXPECT_EQ(F32ToF16(1023.75f * 0x1p-24f), 0x0400);  // a subnormal rounds up to a normal
  EXPECT_EQ(F32ToF16(1.0f + 0x1p-11f), 0x3c00);      // a tie
  EXPECT_EQ(F32ToF16(1.0f + 3 * 0x1p-11f), 0x3c02);  // a tie, upwards
  EXPECT_EQ(F32ToF16(std::bit_cast<float>(0xffa01fffu)), 0xff00);  // NaN: sign, payload, quiet
}

TEST(Float16Test, Bfloat16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(F32ToBF16(1.0f), 0x3f80);
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // a tie
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // a tie, upwards
  EXPECT_EQ(F32ToBF16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x7f800001u)), 0x7fc0);  // not rounded to infinity
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x00018000u)), 0x0002);  // subnormal
  for (uint32_t brain = 0; brain < 0x10000; ++brain) {
    ASSERT_EQ(Bits(BF16ToF32(static_cast<uint16_t>(brain))), brain << 16);
  }
}

__attribute__((target("f16c"))) uint16_t HardwareF32ToF16(float value) {
  return static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
}
__attribute__((target("f16c"))) float HardwareF16ToF32(uint16_t half) { return _cvtsh_ss(half); }

TEST(Float16Test, EqualsF16C) {
  // clang 14 cannot ask for F16C by name; every machine with AVX2 has it.
  if (!__builtin_cpu_supports("avx2")) {
    GTEST_SKIP() << "this machine has no AVX2 and so perhaps no F16C";
  }
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const uint16_t h = static_cast<uint16_t>(half);
    ASSERT_EQ(Bits(F16ToF32(h)), Bits(HardwareF16ToF32(h))) << std::hex << half;
  }
  // Every exponent, with mantissas around all rounding borders of f16, normal and subnormal.
  std::mt19937 random(1);
  for (uint32_t upper = 0; upper < 0x200; ++upper) {
    for (int i = 0; i < 4096; ++i) {
      const uint32_t mantissa =
          i < 24 * 3 ? (1u << (i / 3)) + static_cast<uint32_t>(i % 3) - 1 : random() & 0x7fffff;
      const float value = std::bit_cast<float>(upper << 23 | (mantissa & 0x7fffff));
      ASSERT_EQ(F32ToF16(value), HardwareF32ToF16(value)) << std::hex << Bits(value);
    }
  }
}

}  // namespace
}  // namespace shoal::kernels
