#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/kernel_fixture.h"

namespace shoal::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kRows[] = {1, 2, 7, 16, 33};

TEST(RmsNormTest, AgreesWithReferenceOverOddWidthsAndHeads) {
  for (const int64_t width : {1, 15, 16, 17, 31, 32, 64, 80, 576}) {
    for (const int64_t groups : {1, 3}) {
      for (const int64_t rows : kRows) {
        SCOPED_TRACE(testing::Message() << rows << " x " << groups << " x " << width);
        Random random(width * 100 + rows);
        const int64_t stride = groups * width + 5;
        const std::vector<float> x = random.Floats(rows * stride, 3);
        const std::vector<float> weight = random.Floats(width);
        ExpectBackendsAgree(
            [&](Backend& backend) {
              std::vector<float> out(rows * stride, 0.25f);
              backend.RmsNorm({.x = x.data(),
                               .x_stride = stride,
                               .weight = weight.data(),
                               .eps = 1e-5f,
                               .rows = rows,
                               .groups = groups,
                               .width = width,
                               .out = out.data(),
                               .out_stride = stride,
                               .quantized = {}});
              return out;
            },
            {.absolute = 1e-7, .relative = 1e-6});
      }
    }
  }
}

TEST(RmsNormTest, QuantizesItsResult) {
  for (const int64_t rows : kRows) {
    const int64_t width = 96;
    Random random(rows);
    const std::vector<float> x = random.Floats(rows * width, 3);
    const std::vector<float> weight = random.Floats(width);
    ExpectBackendsAgree(
        [&](Backend& backend) {
          OwnedQuantized quantized(rows, width);
          backend.RmsNorm({.x = x.data(),
                           .x_stride = width,
                           .weight = weight.data(),
                           .eps = 1e-5f,
                           .rows = rows,
                           .groups = 1,
                           .width = width,
                           .out = nullptr,
                           .out_stride = 0,
                           .quantized = quantized.view});
          return quantized.Dequantized();
        },
        {.absolute = 2.0 / 127});
  }
}

TEST(QuantizeTest, EqualsReferenceExactly) {
  for (const int64_t rows : kRows) {
    for (const int64_t width : {32, 64, 576}) {
      Random random(rows + width);
      std::vector<float> x = random.Floats(rows * width, 5);
      std::fill(x.begin(), x.begin() + 32, 0.0f);  // a block of zeros
      for (int k = 0; k < 32 && rows > 1; ++k) {   // a block too small to have a scale
        x[width + k] = 1e-38f;
      }
      const auto run = [&](Backend& backend) {
        OwnedQuantized quantized(rows, width);
        backend.Quantize({.x = x.data(), .x_stride = width, .out = quantized.view});
        std::vector<float> all(quantized.q.begin(), quantized.q.end());
        all.insert(all.end(), quantized.scale.begin(), quantized.scale.end());
        all.insert(all.end(), quantized.sum.begin(), quantized.sum.end());
        return all;
      };
      ExpectBackendsAgree(run, {});
    }
  }
}

TEST(QuantizeTest, SumIsTheSumOfTheBlock) {
  Random random(1);
  const std::vector<float> x = random.Floats(64);
  for (const NamedBackend& cpu : CpuBackends()) {
    OwnedQuantized quantized(1, 64);
    cpu.backend->Quantize({.x = x.data(), .x_stride = 64, .out = quantized.view});
    for (int block = 0; block < 2; ++block) {
      int sum = 0;
      for (int k = 0; k < 32; ++k) {
        sum += quantized.q[block * 32 + k];
      }
      EXPECT_EQ(quantized.sum[block], sum);
    }
  }
}

TEST(QuantizeTest, ABlockWithAValueThatIsNotFiniteHasScaleNaN) {
  constexpr int64_t kNumRows = 2, kWidth = 96;
  const std::vector<float> clean = Random(3).Floats(kNumRows * kWidth);
  const auto run = [&](Backend& backend, const std::vector<float>& x, OwnedQuantized* out) {
    backend.Quantize({.x = x.data(), .x_stride = kWidth, .out = out->view});
  };
  const auto check = [&](Backend& backend) {
    OwnedQuantized expected(kNumRows, kWidth);
    run(backend, clean, &expected);
    for (const float bad : {kNaN, -kNaN, kInfinity, -kInfinity}) {
      for (int lane = 0; lane < 32; ++lane) {
        for (const bool alone : {false, true}) {
          std::vector<float> x = clean;
          if (alone) std::fill(&x[32], &x[64], 0.0f);
          x[32 + lane] = bad;  // row 0, block 1
          OwnedQuantized actual(kNumRows, kWidth);
          run(backend, x, &actual);
          SCOPED_TRACE(testing::Message() << bad << " at " << lane << (alone ? " in zeros" : ""));
          EXPECT_TRUE(std::isnan(actual.scale[1 * kNumRows]));
          EXPECT_EQ(actual.sum[1 * kNumRows], 0);
          for (const int64_t at : {0, 1, 3, 4, 5}) {
            ASSERT_EQ(actual.scale[at], expected.scale[at]);
            ASSERT_EQ(actual.sum[at], expected.sum[at]);
            ASSERT_EQ(std::memcmp(&actual.q[at * 32], &expected.q[at * 32], 32), 0);
          }
        }
      }
    }
  };
  for (const NamedBackend& cpu : CpuBackends()) {
    SCOPED_TRACE(cpu.name);
    check(*cpu.backend);
  }
  SCOPED_TRACE("reference");
  check(ReferenceBackend());
}

TEST(QuantizeTest, AProductOfARowThatIsNotFiniteIsNaNAndItsNeighboursKeepTheirBits) {
  constexpr int64_t kNumRows = 5, kWidth = 64, kOutputs = 24;
  const std::vector<float> values = Random(5).Floats(kOutputs * kWidth);
  const std::vector<float> clean = Random(6).Floats(kNumRows * kWidth);
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_1}) {
    const int64_t row_bytes = RowBytes(type, kWidth);
    std::vector<uint8_t> data(kOutputs * row_bytes);
    for (int row = 0; row < kOutputs; ++row) {
      QuantizeRow(type, &values[row * kWidth], &data[row * row_bytes], kWidth);
    }
    for (const NamedBackend& cpu : CpuBackends()) {
      auto matrix = cpu.backend->Pack({.type = type,
                                       .data = data.data(),
                                       .row_bytes = row_bytes,
                                       .cols = kWidth,
                                       .row_begin = 0,
                                       .row_end = kOutputs,
                                       .col_begin = 0,
                                       .col_end = kWidth});
      ASSERT_TRUE(matrix.ok()) << matrix.status();
      const auto multiply = [&](const std::vector<float>& x) {
        OwnedQuantized xq(kNumRows, kWidth);
        cpu.backend->Quantize({.x = x.data(), .x_stride = kWidth, .out = xq.view});
        const PackedWeight* segment = (*matrix)->weight();
        std::vector<float> out(kNumRows * kOutputs);
        cpu.backend->MatMul({.segments = &segment,
                             .num_segments = 1,
                             .xq = xq.view,
                             .x = nullptr,
                             .x_stride = 0,
                             .rows = kNumRows,
                             .split = {},
                             .bias = nullptr,
                             .out = out.data(),
                             .out_stride = kOutputs,
                             .root_stride = 0});
        return out;
      };
      std::vector<float> x = clean;
      x[1 * kWidth + 40] = kNaN;
      x[3 * kWidth + 7] = -kInfinity;
      const std::vector<float> expected = multiply(clean);
      const std::vector<float> actual = multiply(x);
      for (int64_t i = 0; i < kNumRows * kOutputs; ++i) {
        const int64_t row = i / kOutputs;
        ASSERT_TRUE(row == 1 || row == 3 ? std::isnan(actual[i]) : actual[i] == expected[i])
            << cpu.name << ", " << TraitsOf(type).name << ", output " << i << ": " << actual[i];
      }
    }
  }
}

TEST(RmsNormTest, ARowWhoseSquaresOverflowIsNaN) {
  std::vector<float> x(2 * 32, 1.0f);
  x[5] = 1e20f;
  const std::vector<float> weight(32, 1.0f);
  const auto check = [&](Backend& backend) {
    std::vector<float> out(2 * 32);
    OwnedQuantized quantized(2, 32);
    backend.RmsNorm({.x = x.data(),
                     .x_stride = 32,
                     .weight = weight.data(),
                     .eps = 1e-5f,
                     .rows = 2,
                     .groups = 1,
                     .width = 32,
                     .out = out.data(),
                     .out_stride = 32,
                     .quantized = quantized.view});
    for (int i = 0; i < 32; ++i) EXPECT_TRUE(std::isnan(out[i])) << i;
    EXPECT_TRUE(std::isnan(quantized.scale[0]));
    EXPECT_NEAR(out[40], 1.0f, 1e-4f);
    EXPECT_EQ(quantized.q[40], 127);
  };
  for (const NamedBackend& cpu : CpuBackends()) {
    SCOPED_TRACE(cpu.name);
    check(*cpu.backend);
  }
  check(ReferenceBackend());
}

TEST(JoinAddTest, JoinsPartsByStepsThenAddsResidualAndNorms) {
  const JoinStep steps[] = {{0, 1}, {2, 3}, {0, 2}};
  for (const int64_t width : {17, 32, 576}) {
    for (const int64_t rows : kRows) {
      for (const bool norm : {false, true}) {
        Random random(width + rows);
        std::vector<std::vector<float>> data;
        std::vector<const float*> parts;
        for (int i = 0; i < 4; ++i) {
          data.push_back(random.Floats(rows * width));
          parts.push_back(data.back().data());
        }
        const std::vector<float> residual = random.Floats(rows * width);
        const std::vector<float> weight = random.Floats(width);
        const bool quantize = norm && width % 32 == 0;
        ExpectBackendsAgree(
            [&](Backend& backend) {
              std::vector<float> out = residual;  // in place
              std::vector<float> normed(rows * width);
              OwnedQuantized quantized(rows, quantize ? width : 0);
              backend.JoinAdd({.parts = parts.data(),
                               .num_parts = 4,
                               .steps = steps,
                               .num_steps = 3,
                               .residual = out.data(),
                               .out = out.data(),
                               .rows = rows,
                               .width = width,
                               .norm_weight = norm ? weight.data() : nullptr,
                               .eps = 1e-5f,
                               .normed = norm ? normed.data() : nullptr,
                               .quantized = quantize ? quantized.view : QuantizedRows{}});
              out.insert(out.end(), normed.begin(), normed.end());
              if (quantize) {  // within a step of the norm, which was compared exactly enough
                const std::vector<float> values = quantized.Dequantized();
                for (int64_t i = 0; i < rows * width; ++i) {
                  EXPECT_NEAR(values[i], normed[i], 2.0 / 127);
                }
              }
              return out;
            },
            {.absolute = 1e-6, .relative = 1e-6});
      }
    }
  }
}

TEST(JoinAddTest, FollowsTheTreeAndNotTheOrderOfParts) {
  // 1e8 + (1 + -1e8) loses the one, (1e8 + -1e8) + 1 keeps it.
  const std::vector<float> big(16, 1e8f), one(16, 1.0f), minus(16, -1e8f), zero(16, 0.0f);
  const float* parts[] = {big.data(), one.data(), minus.data()};
  const JoinStep in_order[] = {{0, 1}, {0, 2}};
  const JoinStep ends_first[] = {{0, 2}, {0, 1}};
  for (const NamedBackend& cpu : CpuBackends()) {
    std::vector<float> out(16);
    JoinAddArgs args{.parts = parts,
                     .num_parts = 3,
                     .steps = in_order,
                     .num_steps = 2,
                     .residual = zero.data(),
                     .out = out.data(),
                     .rows = 1,
                     .width = 16,
                     .norm_weight = nullptr,
                     .eps = 0,
                     .normed = nullptr,
                     .quantized = {}};
    cpu.backend->JoinAdd(args);
    EXPECT_EQ(out[3], 0.0f) << cpu.name;
    args.steps = ends_first;
    cpu.backend->JoinAdd(args);
    EXPECT_EQ(out[3], 1.0f) << cpu.name;
  }
}

TEST(SwiGluTest, AgreesWithReference) {
  for (const int64_t width : {1, 16, 17, 32, 40, 576, 1536}) {
    for (const int64_t rows : kRows) {
      Random random(width + rows);
      const int64_t stride = 2 * width + 3;
      const std::vector<float> x = random.Floats(rows * stride, 20);
      ExpectBackendsAgree(
          [&](Backend& backend) {
            std::vector<float> out(rows * width);
            backend.SwiGlu({.gate_up = x.data(),
                            .stride = stride,
                            .rows = rows,
                            .width = width,
                            .out = out.data(),
                            .quantized = {}});
            return out;
          },
          {.absolute = 1e-30, .relative = 5e-7});
    }
  }
}

TEST(SwiGluTest, StaysRightWhereExpOverflowsAndUnderflows) {
  const std::vector<float> gates = {-200,   -100, -88.5, -88, -87.4, -50, -1e-30f, 0,
                                    1e-30f, 50,   87.4,  88,  88.5,  100, 200,     1e30f};
  std::vector<float> x = gates;
  x.insert(x.end(), 16, 1.0f);  // up
  ExpectBackendsAgree(
      [&](Backend& backend) {
        std::vector<float> out(16);
        backend.SwiGlu({.gate_up = x.data(),
                        .stride = 32,
                        .rows = 1,
                        .width = 16,
                        .out = out.data(),
                        .quantized = {}});
        return out;
      },
      {.absolute = 1e-35, .relative = 5e-7});
}

TEST(SwiGluTest, QuantizesItsResult) {
  for (const int64_t rows : kRows) {
    const int64_t width = 96;
    Random random(rows);
    const std::vector<float> x = random.Floats(rows * 2 * width, 2);
    ExpectBackendsAgree(
        [&](Backend& backend) {
          OwnedQuantized quantized(rows, width);
          backend.SwiGlu({.gate_up = x.data(),
                          .stride = 2 * width,
                          .rows = rows,
                          .width = width,
                          .out = nullptr,
                          .quantized = quantized.view});
          return quantized.Dequantized();
        },
        {.absolute = 4.0 / 127});
  }
}

TEST(GatherRowsTest, CopiesTheRowsNamed) {
  const std::vector<float> x = Random(1).Floats(5 * 7);
  const int32_t indices[] = {4, 0, 4};
  ExpectBackendsAgree(
      [&](Backend& backend) {
        std::vector<float> out(3 * 7);
        backend.GatherRows(
            {.x = x.data(), .indices = indices, .rows = 3, .width = 7, .out = out.data()});
        EXPECT_EQ(out[0], x[28]);
        EXPECT_EQ(out[8], x[1]);
        return out;
      },
      {});
}

TEST(EmbedTest, LooksUpRowsInTheFilesFormat) {
  const int64_t width = 64;
  const std::vector<float> values = Random(1).Floats(10 * width);
  const int64_t row_bytes = RowBytes(DType::kQ8_0, width);
  std::vector<uint8_t> table(10 * row_bytes);
  for (int row = 0; row < 10; ++row) {
    QuantizeRow(DType::kQ8_0, &values[row * width], &table[row * row_bytes], width);
  }
  const int32_t tokens[] = {9, 0, 3};
  const auto run = [&](Backend& backend) {
    std::vector<float> out(3 * width);
    backend.Embed({.table = table.data(),
                   .type = DType::kQ8_0,
                   .row_bytes = row_bytes,
                   .width = width,
                   .tokens = tokens,
                   .rows = 3,
                   .out = out.data()});
    return out;
  };
  ExpectBackendsAgree(run, {});
  const std::vector<float> out = run(ReferenceBackend());
  for (int64_t i = 0; i < width; ++i) {
    EXPECT_NEAR(out[i], values[9 * width + i], 0.01);
  }
}

TEST(RowsTest, HaveTheBitsOfNumericsIdCpu1) {
  Backend& backend = *CpuBackends().back().backend;
  const std::vector<float> x = Random(1).Floats(3 * 192, 10);
  const std::vector<float> weight = Random(2).Floats(192);
  std::vector<float> normed(3 * 192), swiglu(3 * 96);
  backend.RmsNorm({.x = x.data(),
                   .x_stride = 192,
                   .weight = weight.data(),
                   .eps = 1e-5f,
                   .rows = 3,
                   .groups = 1,
                   .width = 192,
                   .out = normed.data(),
                   .out_stride = 192,
                   .quantized = {}});
  backend.SwiGlu({.gate_up = x.data(),
                  .stride = 192,
                  .rows = 3,
                  .width = 96,
                  .out = swiglu.data(),
                  .quantized = {}});
  normed.insert(normed.end(), swiglu.begin(), swiglu.end());
  EXPECT_EQ(HashOfBits(normed), 4220114936533643524u);
}

TEST(RowsTest, NaNAndInfinityPassThroughWithoutHarm) {
  for (const NamedBackend& cpu : CpuBackends()) {
    std::vector<float> x(2 * 64, 1.0f);
    x[3] = kNaN;
    x[40] = kInfinity;
    x[70] = -kInfinity;
    std::vector<float> out(2 * 64), weight(64, 1.0f);
    OwnedQuantized quantized(2, 64);
    cpu.backend->Quantize({.x = x.data(), .x_stride = 64, .out = quantized.view});
    cpu.backend->RmsNorm({.x = x.data(),
                          .x_stride = 64,
                          .weight = weight.data(),
                          .eps = 1e-5f,
                          .rows = 2,
                          .groups = 1,
                          .width = 64,
                          .out = out.data(),
                          .out_stride = 64,
                          .quantized = quantized.view});
    EXPECT_TRUE(std::isnan(out[3])) << cpu.name;
    std::vector<float> half(2 * 32);
    cpu.backend->SwiGlu({.gate_up = x.data(),
                         .stride = 64,
                         .rows = 2,
                         .width = 32,
                         .out = half.data(),
                         .quantized = {}});
    EXPECT_TRUE(std::isnan(half[3])) << cpu.name;
    EXPECT_FALSE(std::isnan(half[4])) << cpu.name;
  }
}

}  // namespace
}  // namespace shoal::kernels
