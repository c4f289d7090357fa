// Speed of the CPU's products: every weight type on the shapes of SmolLM2-135M and Llama-3.2-1B,
// few and many rows, beside what this machine reads and multiplies at best in the same run.
//
//   matmul_bench [--benchmark_filter='^Q4_0/8192x2048/']     environment: machine_limits.h, and
//   SHOAL_BENCH_ISA=avx512|avx2|...     default: the best one of this machine
//
// of_read is weight bytes per second over the measured read bandwidth; of_peak is operations per
// second over the peak of vpdpbusd (float types: over the f32 FMA peak). A peak of 0: no AVX-512
// VNNI here. _tree: with the K axis cut in eight leaves, as row-parallel products have it.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/machine_limits.h"
#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/quant/block_formats.h"
#include "kernels/quant/float16.h"

namespace shoal::kernels {
namespace {

using bench::NumThreads;

constexpr size_t kFootprint = size_t{256} << 20;  // bytes of weights that are cycled through

struct Shape {
  int64_t outputs;
  int64_t cols;
};
constexpr Shape kShapes[] = {{576, 576},   {1536, 576},  {576, 1536},  {49152, 576},
                             {2048, 2048}, {8192, 2048}, {2048, 8192}, {128256, 2048}};

// Random bytes with small scales where the type has them: any such block is valid.
std::vector<uint8_t> RandomRows(DType type, int64_t rows, int64_t row_bytes) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(rows * row_bytes);
  const uint16_t one = F32ToF16(0.01f);
  if (!IsQuantized(type)) {
    for (size_t i = 0; i + 4 <= bytes.size(); i += type == DType::kF32 ? 4 : 2) {
      const float value = static_cast<float>(random() % 1000) * 1e-3f;
      const uint16_t half = type == DType::kF16 ? F32ToF16(value) : F32ToBF16(value);
      std::memcpy(&bytes[i], type == DType::kF32 ? static_cast<const void*>(&value) : &half,
                  type == DType::kF32 ? 4 : 2);
    }
    return bytes;
  }
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random()); });
  const size_t block = TraitsOf(type).bytes_per_block;
  for (size_t at = 0; at < bytes.size(); at += block) {
    if (type == DType::kQ6_K) {
      std::memcpy(&bytes[at + block - 2], &one, 2);
    } else {
      std::memcpy(&bytes[at], &one, 2);
      std::memcpy(&bytes[at + 2], &one, 2);
    }
  }
  return bytes;
}

// Copies of one weight that together exceed the caches a core has to itself.
struct Weights {
  Weights(DType type, Shape shape, Backend* backend) : type(type), shape(shape) {
    const int64_t row_bytes = RowBytes(type, shape.cols);
    const std::vector<uint8_t> file = RandomRows(type, shape.outputs, row_bytes);
    size_t total = 0;
    while (total < kFootprint) {
      auto matrix = backend->Pack({.type = type,
                                   .data = file.data(),
                                   .row_bytes = row_bytes,
                                   .cols = shape.cols,
                                   .row_begin = 0,
                                   .row_end = shape.outputs,
                                   .col_begin = 0,
                                   .col_end = shape.cols});
      CHECK(matrix.ok()) << matrix.status();
      total += (*matrix)->size_bytes();
      copies.push_back(*std::move(matrix));
    }
  }
  DType type;
  Shape shape;
  std::vector<std::unique_ptr<PackedMatrix>> copies;
};

// Weights of one type and shape at a time.
const Weights& WeightsOf(DType type, Shape shape, Backend* backend) {
  static std::unique_ptr<Weights> weights;
  if (weights == nullptr || weights->type != type || weights->shape.outputs != shape.outputs ||
      weights->shape.cols != shape.cols) {
    weights.reset();
    weights = std::make_unique<Weights>(type, shape, backend);
  }
  return *weights;
}

KSplit EightLeaves(int64_t cols) {
  KSplit split;
  split.num_leaves = kMaxLeaves;
  split.num_steps = kMaxLeaves - 1;
  split.num_roots = 1;
  for (int i = 0; i < kMaxLeaves; ++i) {
    split.leaf_ends[i] = cols / 32 * (i + 1) / kMaxLeaves * 32;
  }
  const JoinStep steps[] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {4, 6}, {0, 4}};
  std::copy(std::begin(steps), std::end(steps), split.steps);
  return split;
}

void MatMul(benchmark::State& state, Backend* backend, DType type, Shape shape, bool tree) {
  const Weights& weights = WeightsOf(type, shape, backend);
  const int64_t rows = state.range(0);
  const auto [outputs, cols] = shape;
  std::vector<float> x(rows * cols);
  std::mt19937 random(2);
  for (float& value : x) {
    value = static_cast<float>(random() % 2001) * 1e-3f - 1.0f;
  }
  std::vector<int8_t> q(rows * cols);
  std::vector<float> scale(rows * cols / 32), out(rows * outputs);
  std::vector<int32_t> sum(rows * cols / 32);
  MatMulArgs args{.xq = {q.data(), scale.data(), sum.data(), rows, cols},
                  .x = x.data(),
                  .x_stride = cols,
                  .rows = rows,
                  .split = tree ? EightLeaves(cols) : KSplit{},
                  .bias = nullptr,
                  .out = out.data(),
                  .out_stride = outputs,
                  .root_stride = 0};
  backend->Quantize({.x = x.data(), .x_stride = cols, .out = args.xq});
  size_t next = 0;
  for (auto _ : state) {
    const PackedWeight* segment = weights.copies[next]->weight();
    args.segments = &segment;
    args.num_segments = 1;
    backend->MatMul(args);
    next = (next + 1) % weights.copies.size();
  }
  backend->Synchronize();
  using benchmark::Counter;
  const double iterations = static_cast<double>(state.iterations());
  const double bytes = iterations * static_cast<double>(weights.copies[0]->size_bytes());
  const double operations = iterations * 2.0 * static_cast<double>(outputs * cols * rows);
  state.counters["GB/s"] = Counter(bytes / 1e9, Counter::kIsRate);
  state.counters["GOP/s"] = Counter(operations / 1e9, Counter::kIsRate);
  state.counters["of_read"] = Counter(bytes / bench::ReadBandwidth(), Counter::kIsRate);
  const double peak = IsQuantized(type) ? bench::PeakInt8() : bench::PeakFloat();
  if (peak > 0) {
    state.counters["of_peak"] = Counter(operations / peak, Counter::kIsRate);
  }
}

void Register(Backend* backend, DType type, Shape shape, bool tree) {
  const std::string name = std::string(TraitsOf(type).name) + "/" + std::to_string(shape.outputs) +
                           "x" + std::to_string(shape.cols) + (tree ? "_tree" : "");
  auto* bench = benchmark::RegisterBenchmark(name.c_str(), MatMul, backend, type, shape, tree);
  bench->Unit(benchmark::kMicrosecond);
  for (const int rows : {1, 2, 4, 8, 12, 16, 24, 32, 64, 512}) {
    bench->Arg(rows);
  }
  if (!bench::UseCpuTime()) {
    bench->UseRealTime();
  }
}

}  // namespace
}  // namespace shoal::kernels

int main(int argc, char** argv) {
  using namespace shoal::kernels;
  Isa isa = BestIsa();
  if (const char* name = std::getenv("SHOAL_BENCH_ISA")) {
    for (const Isa supported : SupportedIsas()) {
      isa = IsaName(supported) == name ? supported : isa;
    }
  }
  auto backend = NewCpuBackend({.threads = NumThreads(), .cpus = {}, .isa = isa});
  CHECK(backend.ok()) << backend.status();
  std::printf("%s, %d threads: reads %.1f GB/s, int8 %.0f GOP/s, f32 %.0f GFLOP/s\n",
              std::string((*backend)->name()).c_str(), NumThreads(),
              shoal::bench::ReadBandwidth() / 1e9, shoal::bench::PeakInt8() / 1e9,
              shoal::bench::PeakFloat() / 1e9);
  for (const DType type :
       {DType::kQ4_0, DType::kQ4_1, DType::kQ4_K, DType::kQ8_0, DType::kQ5_0, DType::kQ5_1,
        DType::kQ5_K, DType::kQ6_K, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Shape shape : kShapes) {
      if (shape.cols % TraitsOf(type).values_per_block != 0) {
        continue;
      }
      for (const bool tree : {false, true}) {
        Register(backend->get(), type, shape, tree);
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
