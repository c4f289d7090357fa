#include <algorithm>
#include <map>

#include "tests/kernels/kernel_fixture.h"

namespace shoal::kernels {
namespace {

constexpr DType kAllTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0,
                               DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                               DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// A weight as it lies in a file. K-quants are random blocks with small scales.
struct FileWeight {
  FileWeight(DType type, int64_t rows, int64_t cols, uint32_t seed)
      : type(type), rows(rows), cols(cols), row_bytes(RowBytes(type, cols)) {
    Random random(seed);
    bytes.resize(rows * row_bytes);
    for (int64_t row = 0; row < rows; ++row) {
      uint8_t* to = bytes.data() + row * row_bytes;
      if (CanQuantize(type)) {
        QuantizeRow(type, random.Floats(cols).data(), to, cols);
      } else {
        FillKQuants(random, to);
      }
    }
  }

  WeightSlice Slice() const { return Slice(0, rows, 0, cols); }
  WeightSlice Slice(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end) const {
    return {.type = type,
            .data = bytes.data(),
            .row_bytes = row_bytes,
            .cols = cols,
            .row_begin = row_begin,
            .row_end = row_end,
            .col_begin = col_begin,
            .col_end = col_end};
  }

  // All bytes of every block but its f16 scales; those are 1.
  void FillCodes(uint8_t fill) {
    const int64_t block_bytes = TraitsOf(type).bytes_per_block;
    const bool two_scales = type == DType::kQ4_1 || type == DType::kQ5_1 || type == DType::kQ4_K ||
                            type == DType::kQ5_K;
    const int64_t scale_at = type == DType::kQ6_K ? block_bytes - 2 : 0;
    const uint16_t one = F32ToF16(1.0f);
    std::fill(bytes.begin(), bytes.end(), fill);
    for (uint8_t* block = bytes.data(); block != bytes.data() + bytes.size();
         block += block_bytes) {
      std::memcpy(block + scale_at, &one, 2);
      if (two_scales) {
        std::memcpy(block + 2, &one, 2);
      }
    }
  }

  DType type;
  int64_t rows;
  int64_t cols;
  int64_t row_bytes;
  std::vector<uint8_t> bytes;

 private:
  void FillKQuants(Random& random, uint8_t* to) {
    const int64_t block_bytes = TraitsOf(type).bytes_per_block;
    for (int64_t i = 0; i < row_bytes; ++i) {
      to[i] = static_cast<uint8_t>(random.Bits());
    }
    for (int64_t at = 0; at < row_bytes; at += block_bytes) {
      const uint16_t d = F32ToF16(random.Uniform() * 1e-3f);
      const uint16_t dmin = F32ToF16(random.Uniform() * 1e-2f);
      if (type == DType::kQ6_K) {
        std::memcpy(to + at + block_bytes - 2, &d, 2);
      } else {
        std::memcpy(to + at, &d, 2);
        std::memcpy(to + at + 2, &dmin, 2);
      }
    }
  }
};

// Packs slices and multiplies them; `x` is [rows, K], quantised on the way when the weights are.
std::vector<float> Multiply(Backend& backend, const std::vector<WeightSlice>& slices,
                            const std::vector<float>& x, int64_t rows, const KSplit& split = {},
                            const float* bias = nullptr) {
  std::vector<std::unique_ptr<PackedMatrix>> packed;
  std::vector<const PackedWeight*> segments;
  int64_t width = 0;
  for (const WeightSlice& slice : slices) {
    auto matrix = backend.Pack(slice);
    CHECK(matrix.ok()) << matrix.status();
    packed.push_back(*std::move(matrix));
    segments.push_back(packed.back()->weight());
    width += packed.back()->rows();
  }
  const int64_t cols = packed[0]->cols();
  const int64_t roots = std::max(split.num_roots, 1);
  const int64_t stride = width + 3;
  std::vector<float> out(roots * rows * stride, 0.5f);
  OwnedQuantized xq(rows, (cols + 31) / 32 * 32);
  const bool quantized = packed[0]->quantized();
  if (quantized) {
    backend.Quantize({.x = x.data(), .x_stride = cols, .out = xq.view});
  }
  const bool any_float = std::any_of(packed.begin(), packed.end(),
                                     [](const auto& matrix) { return !matrix->quantized(); });
  backend.MatMul({.segments = segments.data(),
                  .num_segments = static_cast<int32_t>(segments.size()),
                  .xq = quantized ? xq.view : QuantizedRows{},
                  .x = any_float ? x.data() : nullptr,
                  .x_stride = cols,
                  .rows = rows,
                  .split = split,
                  .bias = bias,
                  .out = out.data(),
                  .out_stride = stride,
                  .root_stride = rows * stride});
  return out;
}

// Values are in [-1, 1] and weights about as large: errors grow with the number of terms.
Tolerance ToleranceFor(int64_t cols) { return {.absolute = 3e-7 * (cols + 30), .relative = 1e-6}; }

TEST(MatMulTest, AgreesWithReferenceForEveryTypeAndOddShapes) {
  for (const DType type : kAllTypes) {
    const bool k_quant = TraitsOf(type).values_per_block == 256;
    for (const int64_t outputs : {1, 15, 16, 17, 100}) {
      for (const int64_t cols :
           k_quant ? std::vector<int64_t>{256, 512} : std::vector<int64_t>{32, 96, 288}) {
        const FileWeight weight(type, outputs, cols, outputs + cols);
        for (const int64_t rows : {1, 2, 3, 5, 17}) {
          SCOPED_TRACE(testing::Message() << TraitsOf(type).name << " " << outputs << " x " << cols
                                          << ", " << rows << " rows");
          const std::vector<float> x = Random(rows).Floats(rows * cols);
          ASSERT_NO_FATAL_FAILURE(ExpectBackendsAgree(
              [&](Backend& backend) { return Multiply(backend, {weight.Slice()}, x, rows); },
              ToleranceFor(cols)));
        }
      }
    }
  }
}

TEST(MatMulTest, FloatWeightsTakeAnyNumberOfColumns) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const FileWeight weight(type, 33, 45, 1);
    const std::vector<float> x = Random(2).Floats(3 * 45);
    ExpectBackendsAgree([&](Backend& backend) { return Multiply(backend, {weight.Slice()}, x, 3); },
                        ToleranceFor(45));
  }
}

// Every row of a product of many rows has the bits it has alone, for every panel shape.
TEST(MatMulTest, RowsDoNotDependOnEachOther) {
  const int64_t outputs = 130;  // several tiles at once, and some left over
  const int64_t cols = 256;
  const std::vector<float> x = Random(4).Floats(130 * cols);
  const auto rows_of = [&](int64_t begin, int64_t end) {
    return std::vector<float>(x.begin() + begin * cols, x.begin() + end * cols);
  };
  for (const DType type : kAllTypes) {
    const FileWeight weight(type, outputs, cols, 3);
    for (const NamedBackend& cpu : CpuBackends()) {
      std::map<int64_t, std::vector<float>> alone;
      for (const int64_t row : {0, 1, 2, 3, 5, 7, 8, 12, 15, 16, 31, 32, 63, 64, 65, 129}) {
        alone[row] = Multiply(*cpu.backend, {weight.Slice()}, rows_of(row, row + 1), 1);
      }
      for (const int64_t rows : {2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 33, 64, 130}) {
        const std::vector<float> result =
            Multiply(*cpu.backend, {weight.Slice()}, rows_of(0, rows), rows);
        for (const auto& [row, expected] : alone) {
          if (row < rows) {
            ASSERT_EQ(std::memcmp(result.data() + row * (outputs + 3), expected.data(),
                                  outputs * sizeof(float)),
                      0)
                << TraitsOf(type).name << " " << cpu.name << ": row " << row << " of " << rows;
          }
        }
      }
    }
  }
}

TEST(MatMulTest, SegmentsOfDifferentTypesFollowEachOther) {
  const int64_t cols = 256;
  const FileWeight a(DType::kQ4_K, 20, cols, 1), b(DType::kQ6_K, 5, cols, 2),
      c(DType::kQ8_0, 33, cols, 3), d(DType::kQ4_0, 16, cols, 4);
  const std::vector<float> bias = Random(5).Floats(74);
  for (const int64_t rows : {1, 4, 20}) {
    const std::vector<float> x = Random(rows).Floats(rows * cols);
    const auto run = [&](Backend& backend) {
      return Multiply(backend, {a.Slice(), b.Slice(), c.Slice(), d.Slice()}, x, rows, {},
                      bias.data());
    };
    ExpectBackendsAgree(run, ToleranceFor(cols));
    // As the four products one after the other.
    Backend& cpu = *CpuBackends().back().backend;
    const std::vector<float> together = run(cpu);
    int64_t column = 0;
    for (const FileWeight* weight : {&a, &b, &c, &d}) {
      const std::vector<float> own =
          Multiply(cpu, {weight->Slice()}, x, rows, {}, bias.data() + column);
      for (int64_t row = 0; row < rows; ++row) {
        ASSERT_EQ(std::memcmp(together.data() + row * 77 + column,
                              own.data() + row * (weight->rows + 3), weight->rows * 4),
                  0);
      }
      column += weight->rows;
    }
  }
}

TEST(MatMulTest, FloatAndQuantizedSegmentsMix) {
  const FileWeight a(DType::kQ8_0, 20, 64, 1), b(DType::kF16, 20, 64, 2);
  const std::vector<float> x = Random(1).Floats(3 * 64);
  ExpectBackendsAgree(
      [&](Backend& backend) {
        return Multiply(backend, {a.Slice(), b.Slice()}, x, 3);
      },
      ToleranceFor(64));
}

TEST(MatMulTest, SlicesAreThePartsOfTheWeight) {
  for (const DType type : kAllTypes) {
    const FileWeight weight(type, 40, 512, 7);
    const std::vector<float> x = Random(8).Floats(2 * 160);
    const WeightSlice slice = weight.Slice(3, 36, 96, 256);
    ASSERT_NO_FATAL_FAILURE(ExpectBackendsAgree(
        [&](Backend& backend) { return Multiply(backend, {slice}, x, 2); }, ToleranceFor(512)))
        << TraitsOf(type).name;
  }
}

KSplit FiveLeaves() {
  KSplit split;
  split.num_leaves = 5;
  const int64_t ends[] = {64, 96, 160, 192, 256};
  std::copy(std::begin(ends), std::end(ends), split.leaf_ends);
  // ((0 1) (2)) and (3 4): two roots.
  split.num_steps = 3;
  split.steps[0] = {0, 1};
  split.steps[1] = {0, 2};
  split.steps[2] = {3, 4};
  split.num_roots = 2;
  split.roots[0] = 0;
  split.roots[1] = 3;
  return split;
}

TEST(MatMulTest, KSplitGivesOnePartialForEachRoot) {
  for (const DType type : kAllTypes) {
    const FileWeight weight(type, 37, 256, 7);
    for (const int64_t rows : {1, 3, 17}) {
      const std::vector<float> x = Random(rows).Floats(rows * 256);
      ASSERT_NO_FATAL_FAILURE(ExpectBackendsAgree(
          [&](Backend& backend) {
            return Multiply(backend, {weight.Slice()}, x, rows, FiveLeaves());
          },
          ToleranceFor(256)))
          << TraitsOf(type).name;
    }
  }
}

// The heart of tensor parallelism: leaves computed by two shards and joined outside have the bits
// of one shard that joins them all.
TEST(MatMulTest, LeavesOfTwoShardsJoinToTheBitsOfOne) {
  for (const DType type : kAllTypes) {
    const FileWeight weight(type, 37, 256, 9);
    const int64_t rows = 3;
    const std::vector<float> x = Random(2).Floats(rows * 256);
    std::vector<float> left, right;
    for (int64_t row = 0; row < rows; ++row) {
      left.insert(left.end(), x.begin() + row * 256, x.begin() + row * 256 + 160);
      right.insert(right.end(), x.begin() + row * 256 + 160, x.begin() + (row + 1) * 256);
    }
    KSplit whole = FiveLeaves();
    whole.steps[3] = {0, 3};
    whole.num_steps = 4;
    whole.num_roots = 1;
    KSplit first = FiveLeaves();
    first.num_leaves = 3;
    first.num_steps = 2;
    first.num_roots = 1;
    KSplit second;
    second.num_leaves = 2;
    second.leaf_ends[0] = 32;
    second.leaf_ends[1] = 96;
    second.num_steps = 1;
    second.steps[0] = {0, 1};
    second.num_roots = 1;
    for (const NamedBackend& cpu : CpuBackends()) {
      Backend& b = *cpu.backend;
      const std::vector<float> one = Multiply(b, {weight.Slice()}, x, rows, whole);
      std::vector<float> sum = Multiply(b, {weight.Slice(0, 37, 0, 160)}, left, rows, first);
      const std::vector<float> rest =
          Multiply(b, {weight.Slice(0, 37, 160, 256)}, right, rows, second);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t n = 0; n < 37; ++n) {
          const int64_t at = row * 40 + n;
          ASSERT_EQ(sum[at] + rest[at], one[at]) << TraitsOf(type).name << " " << cpu.name;
        }
      }
    }
  }
}

// The extremes of the integer dot product: q of 255 and -127 everywhere must not saturate.
TEST(MatMulTest, ExtremeCodesDoNotSaturate) {
  const int64_t cols = 64;
  std::vector<BlockQ8_0> file(2);
  for (const int code : {127, -128}) {
    for (BlockQ8_0& block : file) {
      block.d = F32ToF16(1.0f);
      std::fill(std::begin(block.q), std::end(block.q), static_cast<int8_t>(code));
    }
    const WeightSlice slice = {.type = DType::kQ8_0,
                               .data = file.data(),
                               .row_bytes = 68,
                               .cols = cols,
                               .row_begin = 0,
                               .row_end = 1,
                               .col_begin = 0,
                               .col_end = cols};
    for (const float value : {127.0f, -127.0f}) {
      const std::vector<float> x(cols, value);
      for (const NamedBackend& cpu : CpuBackends()) {
        EXPECT_EQ(Multiply(*cpu.backend, {slice}, x, 1)[0], value * code * cols) << cpu.name;
      }
    }
  }
}

TEST(MatMulTest, ExtremeCodesOfEveryWidthDoNotSaturate) {
  for (const DType type : kAllTypes) {
    if (!IsQuantized(type)) {
      continue;
    }
    const int64_t cols = 256;
    FileWeight weight(type, 1, cols, 1);
    for (const uint8_t fill : {0x00, 0xff, 0x7f, 0x80}) {
      weight.FillCodes(fill);
      for (const float value : {127.0f, -127.0f}) {
        const std::vector<float> x(cols, value);
        ASSERT_NO_FATAL_FAILURE(ExpectBackendsAgree(
            [&](Backend& backend) { return Multiply(backend, {weight.Slice()}, x, 1); },
            {.absolute = 1, .relative = 1e-5}))
            << TraitsOf(type).name << " " << int{fill};
      }
    }
  }
}

TEST(MatMulTest, HasTheBitsOfNumericsIdCpu1) {
  const std::vector<float> x = Random(1).Floats(3 * 256);
  std::vector<float> all;
  for (const DType type : kAllTypes) {
    const FileWeight weight(type, 20, 256, 2);
    const std::vector<float> result =
        Multiply(*CpuBackends().back().backend, {weight.Slice()}, x, 3, FiveLeaves());
    all.insert(all.end(), result.begin(), result.end());
  }
  EXPECT_EQ(HashOfBits(all), 14776903495160895865u);
}

TEST(MatMulTest, NoRowsIsFine) {
  const FileWeight weight(DType::kQ8_0, 16, 32, 1);
  for (const NamedBackend& cpu : CpuBackends()) {
    EXPECT_TRUE(Multiply(*cpu.backend, {weight.Slice()}, {}, 0).empty());
  }
}

TEST(MatMulTest, LargeProductsAreTheSameOnAnyNumberOfThreads) {
  const int64_t cols = 1024;
  const FileWeight weight(DType::kQ4_0, 700, cols, 5);
  const std::vector<float> x = Random(6).Floats(40 * cols);
  std::vector<float> first;
  for (const NamedBackend& cpu : CpuBackends()) {
    const std::vector<float> result = Multiply(*cpu.backend, {weight.Slice()}, x, 40);
    if (first.empty()) {
      first = result;
    }
    EXPECT_TRUE(SameBits(result, first)) << cpu.name;
  }
}

TEST(PackTest, RefusesWhatCannotBePacked) {
  const FileWeight weight(DType::kQ8_0, 16, 64, 1);
  for (const NamedBackend& cpu : CpuBackends()) {
    Backend& backend = *cpu.backend;
    EXPECT_EQ(backend.Pack(weight.Slice(0, 16, 16, 64)).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(backend.Pack(weight.Slice(0, 16, 0, 96)).status().code(),
              absl::StatusCode::kInvalidArgument);
    WeightSlice integers = weight.Slice();
    integers.type = DType::kI32;
    EXPECT_EQ(backend.Pack(integers).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(PackTest, WeightsTakeAboutTheMemoryOfTheFile) {
  for (const DType type : kAllTypes) {
    const FileWeight weight(type, 256, 1024, 1);
    auto packed = CpuBackends()[0].backend->Pack(weight.Slice());
    ASSERT_TRUE(packed.ok());
    const double ratio = static_cast<double>((*packed)->size_bytes()) / weight.bytes.size();
    const bool wide_scales = type == DType::kQ4_K || type == DType::kQ5_K;  // 8 bits for 6
    EXPECT_LE(ratio, wide_scales ? 1.03 : 1.01) << TraitsOf(type).name;
  }
}

}  // namespace
}  // namespace shoal::kernels
