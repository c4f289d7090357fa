#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/quant/block_formats.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/quantize.h"
#include "kernels/quant/unpack.h"

namespace shoal::kernels {
namespace {

constexpr DType kBlockTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                 DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

std::vector<float> RandomRow(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> row(static_cast<size_t>(n));
  for (float& value : row) {
    value = normal(random);
  }
  return row;
}

// Calls `edit` with each f16 scale of the blocks in `bytes`.
void ForEachScale(DType type, std::vector<uint8_t>* bytes, void (*edit)(uint8_t* d)) {
  const bool two_scales =
      type == DType::kQ4_1 || type == DType::kQ5_1 || type == DType::kQ4_K || type == DType::kQ5_K;
  const size_t block_bytes = static_cast<size_t>(TraitsOf(type).bytes_per_block);
  for (size_t block = 0; block < bytes->size(); block += block_bytes) {
    uint8_t* d = bytes->data() + block + (type == DType::kQ6_K ? 208 : 0);
    edit(d);
    if (two_scales) {
      edit(d + 2);
    }
  }
}

// Blocks of any bits, but with finite scales.
std::vector<uint8_t> RandomBlocks(DType type, int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(RowBytes(type, n)));
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(random());
  }
  ForEachScale(type, &bytes, [](uint8_t* d) { d[1] &= 0xbf; });  // below 2
  return bytes;
}

TEST(BlockFormatsTest, RowBytesCountsWholeBlocks) {
  EXPECT_EQ(RowBytes(DType::kF32, 3), 12);
  EXPECT_EQ(RowBytes(DType::kQ8_0, 64), 68);
  EXPECT_EQ(RowBytes(DType::kQ6_K, 512), 420);
  EXPECT_EQ(RowBytes(DType::kQ4_K, 0), 0);
  EXPECT_DEATH(RowBytes(DType::kQ4_K, 128), "Q4_K");
}

TEST(BlockFormatsTest, IdsAreThoseOfGguf) {
  for (uint32_t id = 0; id < 64; ++id) {
    const std::optional<DType> type = DTypeFromGguf(id);
    if (type.has_value()) {
      EXPECT_EQ(static_cast<uint32_t>(*type), id);
      EXPECT_GT(TraitsOf(*type).bytes_per_block, 0);
    }
  }
  EXPECT_EQ(DTypeFromGguf(14), DType::kQ6_K);
  EXPECT_EQ(DTypeFromGguf(10), std::nullopt);  // Q2_K
  EXPECT_EQ(DTypeFromGguf(4), std::nullopt);   // removed from GGUF
  EXPECT_TRUE(IsWeightType(DType::kBF16));
  EXPECT_FALSE(IsWeightType(DType::kI32));
  EXPECT_FALSE(IsQuantized(DType::kF16));
}

TEST(BlockFormatsTest, SixBitScalesCoverAllTheirBits) {
  // Pairs (sc, mn) 0..7 packed by hand from the drawing in block_formats.h.
  const uint8_t scale[8] = {1, 2, 33, 63, 0x2a, 0x15, 0x3f, 0x10};
  const uint8_t min[8] = {60, 5, 0, 31, 0x35, 0x0a, 0x20, 0x3f};
  uint8_t packed[12];
  for (int j = 0; j < 4; ++j) {
    packed[j] = static_cast<uint8_t>(scale[j] | (scale[j + 4] >> 4) << 6);
    packed[j + 4] = static_cast<uint8_t>(min[j] | (min[j + 4] >> 4) << 6);
    packed[j + 8] = static_cast<uint8_t>((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
  }
  const Scales6 result = UnpackScales6(packed);
  EXPECT_EQ(std::memcmp(result.scale, scale, 8), 0);
  EXPECT_EQ(std::memcmp(result.min, min, 8), 0);
}

// Each format on one block written by hand: value k is what the drawing says.
TEST(DequantizeTest, NibblesGoToBothHalves) {
  BlockQ4_0 block{F32ToF16(0.5f), {}};
  block.qs[3] = 0xf1;  // q[3] = 1, q[19] = 15
  float y[32];
  DequantizeRow(DType::kQ4_0, &block, y, 32);
  EXPECT_EQ(y[3], -3.5f);
  EXPECT_EQ(y[19], 3.5f);
  EXPECT_EQ(y[0], -4.0f);
}

TEST(DequantizeTest, HighBitsOfQ5AreInOrder) {
  BlockQ5_1 block{F32ToF16(2.0f), F32ToF16(-1.0f), {}, {}};
  block.qh[1] = 0x01;  // k = 8
  block.qh[3] = 0x80;  // k = 31
  block.qs[15] = 0x30;
  float y[32];
  DequantizeRow(DType::kQ5_1, &block, y, 32);
  EXPECT_EQ(y[0], -1.0f);
  EXPECT_EQ(y[8], 31.0f);
  EXPECT_EQ(y[31], 2.0f * 19 - 1.0f);
}

TEST(DequantizeTest, SubBlocksOfQ5KUseTheirScaleMinimumAndBit) {
  BlockQ5_K block{};
  block.d = F32ToF16(0.25f);
  block.dmin = F32ToF16(0.5f);
  block.scales[3] = 0x43;     // sc[3] = 3, bit 4 of sc[7] set: 16
  block.scales[11] = 0x02;    // low bits of sc[7]: 2, so sc[7] = 18
  block.scales[7] = 0x81;     // mn[3] = 1, bit 5 of mn[7] set: 32
  block.qs[32 + 5] = 0x70;    // sub-block 3, value 5: low bits 7
  block.qh[5] = 0x08 | 0x80;  // bit 3 and bit 7
  float y[256];
  DequantizeRow(DType::kQ5_K, &block, y, 256);
  EXPECT_EQ(y[3 * 32 + 5], 0.25f * 3 * 23 - 0.5f);
  EXPECT_EQ(y[3 * 32 + 6], -0.5f);
  EXPECT_EQ(y[7 * 32 + 5], 0.25f * 18 * 16 - 0.5f * 32);
  EXPECT_EQ(y[2 * 32 + 5], 0.0f);
}

TEST(DequantizeTest, QuartersOfQ6KComeFromTheirBits) {
  BlockQ6_K block{};
  block.d = F32ToF16(0.5f);
  for (int s = 0; s < 16; ++s) {
    block.scales[s] = static_cast<int8_t>(s - 8);
  }
  block.ql[64 + 32 + 20] = 0x94;  // half 1: v = 1 low nibble 4, v = 3 high nibble 9
  block.qh[32 + 20] = 0xc4;       // v = 1: bits 3..2 = 1, v = 3: bits 7..6 = 3
  float y[256];
  DequantizeRow(DType::kQ6_K, &block, y, 256);
  EXPECT_EQ(y[128 + 32 + 20], 0.5f * (11 - 8) * (0x14 - 32));
  EXPECT_EQ(y[128 + 96 + 20], 0.5f * (15 - 8) * (0x39 - 32));
  EXPECT_EQ(y[128 + 20], 0.5f * (9 - 8) * -32);
}

TEST(UnpackTest, EqualsDequantizeForAllBits) {
  constexpr int64_t kCols = 256 * 40;
  for (DType type : kBlockTypes) {
    const std::vector<uint8_t> row = RandomBlocks(type, kCols, 7);
    std::vector<float> expected(kCols);
    DequantizeRow(type, row.data(), expected.data(), kCols);
    std::vector<Unpacked32> blocks(kCols / 32);
    UnpackRow(type, row.data(), blocks.data(), kCols);
    for (int64_t k = 0; k < kCols; ++k) {
      const Unpacked32& block = blocks[static_cast<size_t>(k / 32)];
      const float d = block.d * static_cast<float>(block.scale[k % 32 / 16]);
      const float product = d * static_cast<float>(block.q[k % 32] - block.zero);
      const float offset = block.m * static_cast<float>(block.min);
      ASSERT_EQ(product + offset, expected[static_cast<size_t>(k)])
          << TraitsOf(type).name << " value " << k;
    }
  }
}

struct Accuracy {
  DType type;
  float max_error;  // of a value, as a part of the block's largest magnitude
};

TEST(QuantizeTest, ErrorIsAtMostHalfAStep) {
  constexpr int64_t kCols = 32 * 200;
  const std::vector<float> row = RandomRow(kCols, 3);
  // Half a step and the rounding of d to f16; a whole step where the levels are -n..n-1, because
  // the positive end is cut.
  for (const Accuracy& accuracy : std::initializer_list<Accuracy>{{DType::kF32, 0.0f},
                                                                  {DType::kF16, 0x1p-11f},
                                                                  {DType::kBF16, 0x1p-8f},
                                                                  {DType::kQ8_0, 0.57f / 127},
                                                                  {DType::kQ4_0, 1.01f / 8},
                                                                  {DType::kQ4_1, 1.02f / 15},
                                                                  {DType::kQ5_0, 1.01f / 16},
                                                                  {DType::kQ5_1, 1.02f / 31}}) {
    ASSERT_TRUE(CanQuantize(accuracy.type));
    std::vector<uint8_t> bytes(static_cast<size_t>(RowBytes(accuracy.type, kCols)));
    QuantizeRow(accuracy.type, row.data(), bytes.data(), kCols);
    std::vector<float> back(kCols);
    DequantizeRow(accuracy.type, bytes.data(), back.data(), kCols);
    for (size_t block = 0; block < kCols; block += 32) {
      float largest = 0.0f;
      for (size_t k = block; k < block + 32; ++k) {
        largest = std::max(largest, std::fabs(row[k]));
      }
      for (size_t k = block; k < block + 32; ++k) {
        ASSERT_LE(std::fabs(back[k] - row[k]), accuracy.max_error * largest)
            << TraitsOf(accuracy.type).name << " value " << k;
      }
    }
  }
  EXPECT_FALSE(CanQuantize(DType::kQ4_K));
  EXPECT_FALSE(CanQuantize(DType::kI32));
}

TEST(QuantizeTest, StoredLevelsSurviveAnotherRound) {
  // Values that are exact in the format come back as they were.
  for (DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1}) {
    std::vector<float> row(64);
    for (int k = 0; k < 32; ++k) {
      const int levels = type == DType::kQ8_0                           ? 255
                         : type == DType::kQ5_0 || type == DType::kQ5_1 ? 32
                                                                        : 16;
      const int low = type == DType::kQ8_0 ? -127 : -levels / 2;
      row[static_cast<size_t>(k)] = 0.25f * static_cast<float>(low + k * (levels - 1) / 31);
    }
    std::vector<uint8_t> bytes(static_cast<size_t>(RowBytes(type, 64)));
    QuantizeRow(type, row.data(), bytes.data(), 64);
    std::vector<float> back(64);
    DequantizeRow(type, bytes.data(), back.data(), 64);
    EXPECT_EQ(back, row) << TraitsOf(type).name;
  }
}

// A number for each index, the same in every language.
uint32_t HashOf(size_t index) {
  uint32_t r = static_cast<uint32_t>(index) * 2654435761u;
  r = (r ^ r >> 15) * 2246822519u;
  return r ^ r >> 13;
}

template <typename T>
uint64_t Fnv1a(const std::vector<T>& values) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) {
    hash = (hash ^ reinterpret_cast<const uint8_t*>(values.data())[i]) * 1099511628211u;
  }
  return hash;
}

struct Golden {
  DType type;
  uint64_t hash;
};

// The hashes come from ggml's own Python package (gguf 0.19.0, quants.quantize and .dequantize) on
// the same input.
TEST(QuantizeTest, BytesAreThoseOfGgml) {
  std::vector<float> row(1024);
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<float>(static_cast<double>(HashOf(i) >> 8) / 0x1p23 - 1.0);
  }
  for (const Golden& golden : std::initializer_list<Golden>{{DType::kQ8_0, 0xaadb946eaf07e726},
                                                            {DType::kQ4_0, 0x18a46f4208d19169},
                                                            {DType::kQ4_1, 0x9b3072392a95a00b},
                                                            {DType::kQ5_0, 0xc4c910d58bd787a9},
                                                            {DType::kQ5_1, 0xe2f36632cbf280e6},
                                                            {DType::kBF16, 0xd760d34b178e970e}}) {
    std::vector<uint8_t> bytes(static_cast<size_t>(RowBytes(golden.type, 1024)));
    QuantizeRow(golden.type, row.data(), bytes.data(), 1024);
    EXPECT_EQ(Fnv1a(bytes), golden.hash) << TraitsOf(golden.type).name;
  }
}

TEST(DequantizeTest, ValuesAreThoseOfGgml) {
  for (const Golden& golden : std::initializer_list<Golden>{{DType::kQ4_K, 0x2ec1c4cabd7fd210},
                                                            {DType::kQ5_K, 0x0203ff70f2c147ad},
                                                            {DType::kQ6_K, 0xad91e1b918857eff},
                                                            {DType::kQ8_0, 0xa437b4b2d40cce92},
                                                            {DType::kQ4_0, 0x4090bbadba2b84fb},
                                                            {DType::kQ4_1, 0x9277c7e0884d9cd6},
                                                            {DType::kQ5_0, 0xceb79246a69b46ce},
                                                            {DType::kQ5_1, 0x2c4a3beb38df6a77}}) {
    const DTypeTraits& traits = TraitsOf(golden.type);
    std::vector<uint8_t> bytes(4 * static_cast<size_t>(traits.bytes_per_block));
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<uint8_t>(HashOf(i) >> 11);
    }
    ForEachScale(golden.type, &bytes, [](uint8_t* d) { d[1] = (d[1] & 0x80) | 0x2c; });
    std::vector<float> values(4 * static_cast<size_t>(traits.values_per_block));
    DequantizeRow(golden.type, bytes.data(), values.data(), static_cast<int64_t>(values.size()));
    EXPECT_EQ(Fnv1a(values), golden.hash) << traits.name;
  }
}

}  // namespace
}  // namespace shoal::kernels
