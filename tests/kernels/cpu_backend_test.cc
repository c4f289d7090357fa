#include <immintrin.h>

#include "tests/kernels/kernel_fixture.h"

namespace shoal::kernels {
namespace {

TEST(CpuBackendTest, RefusesThreadsOutOfRange) {
  for (const int threads : {-1, 0, 1025}) {
    const auto backend = NewCpuBackend({.threads = threads, .cpus = {}, .isa = {}});
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(backend.status().message()),
                testing::HasSubstr(std::to_string(threads)));
  }
}

TEST(CpuBackendTest, RefusesCpusItMayNotRunOn) {
  for (const int cpu : {-3, 1000, 5000}) {
    const auto backend = NewCpuBackend({.threads = 1, .cpus = {cpu}, .isa = {}});
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(backend.status().message()), testing::HasSubstr(std::to_string(cpu)));
  }
}

TEST(CpuBackendTest, TakesTheBestInstructionSetOfTheMachine) {
  const auto backend = NewCpuBackend({});
  ASSERT_TRUE(backend.ok());
  EXPECT_EQ((*backend)->name(), "cpu-" + std::string(IsaName(BestIsa())));
}

TEST(CpuBackendTest, RefusesAnInstructionSetTheMachineLacks) {
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (!IsaSupported(isa)) {
      EXPECT_EQ(NewCpuBackend({.threads = 1, .cpus = {}, .isa = isa}).status().code(),
                absl::StatusCode::kFailedPrecondition);
    }
  }
}

TEST(CpuBackendTest, EveryInstructionSetIsTestedHere) {
  if (SupportedIsas().size() != 4) {
    GTEST_SKIP() << "this machine has only up to " << IsaName(BestIsa())
                 << ": the tests of faster instruction sets did not run";
  }
}

TEST(CpuBackendTest, AllInstructionSetsShareOneNumericsId) {
  for (const NamedBackend& cpu : CpuBackends()) {
    EXPECT_EQ(cpu.backend->numerics_id(), CpuBackends()[0].backend->numerics_id());
  }
}

TEST(CpuBackendTest, SaysWhatMemoryWasWantedFor) {
  const auto buffer = CpuBackends()[0].backend->Allocate(size_t{1} << 60, "the KV cache");
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(buffer.status().message()),
              testing::AllOf(testing::HasSubstr("the KV cache"),
                             testing::HasSubstr(std::to_string(size_t{1} << 60))));
}

TEST(CpuBackendTest, BuffersAreAlignedAndHoldWhatIsUploaded) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{3} << 20}) {
    Backend& backend = *CpuBackends()[0].backend;
    const auto buffer = backend.Allocate(bytes, "a test");
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ((*buffer)->size_bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>((*buffer)->data()) % 64, 0);
    std::vector<uint8_t> from(bytes, 7), to(bytes);
    backend.Upload((*buffer)->data(), from.data(), bytes);
    backend.Download(to.data(), (*buffer)->data(), bytes);
    EXPECT_EQ(from, to);
  }
}

// Flush-to-zero in the calling thread must not change results, and must stay as the caller set it.
TEST(CpuBackendTest, ComputesInItsOwnFloatingPointEnvironment) {
  std::vector<float> x(4096, 1e-38f), weight(4096, 1.0f);
  const auto run = [&](Backend& backend) {
    std::vector<float> out(4096);
    backend.RmsNorm({.x = x.data(),
                     .x_stride = 64,
                     .weight = weight.data(),
                     .eps = 1e4f,  // results are subnormal
                     .rows = 64,
                     .groups = 1,
                     .width = 64,
                     .out = out.data(),
                     .out_stride = 64,
                     .quantized = {}});
    return out;
  };
  const uint32_t saved = _mm_getcsr();
  for (const NamedBackend& cpu : CpuBackends()) {
    const std::vector<float> expected = run(*cpu.backend);
    EXPECT_GT(expected[0], 0.0f);
    _mm_setcsr(saved | 0x8040);  // FTZ, DAZ
    const std::vector<float> result = run(*cpu.backend);
    const uint32_t after = _mm_getcsr();
    _mm_setcsr(saved);
    EXPECT_EQ(after & 0x8040, 0x8040u) << cpu.name;
    EXPECT_TRUE(SameBits(result, expected)) << cpu.name;
  }
}

}  // namespace
}  // namespace shoal::kernels
