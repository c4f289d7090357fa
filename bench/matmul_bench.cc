// Speed of the CPU's products: every weight type, few and many rows, beside what this machine reads
// and multiplies at best in the same run.
//
//   matmul_bench [--benchmark_filter=Q4_0]
//   SHOAL_BENCH_THREADS=n     default: all CPUs
//   SHOAL_BENCH_CPU_TIME=1    one thread, and its CPU time instead of the wall's: for a machine
//   that is busy
//
// of_read is weight bytes per second over the measured read bandwidth; of_peak is operations per
// second over the int8 peak (float types: over the f32 FMA peak). A peak of 0: no AVX-512 VNNI
// here.

#include <benchmark/benchmark.h>
#include <immintrin.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "glog/logging.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/quant/block_formats.h"
#include "kernels/quant/float16.h"

namespace shoal::kernels {
namespace {

constexpr int64_t kOutputs = 5632;
constexpr int64_t kCols = 2048;
constexpr size_t kFootprint = size_t{256} << 20;  // bytes of weights that are cycled through

bool UseCpuTime() { return std::getenv("SHOAL_BENCH_CPU_TIME") != nullptr; }

double Seconds() {
  timespec now;
  clock_gettime(UseCpuTime() ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

int NumThreads() {
  if (UseCpuTime()) {
    return 1;
  }
  if (const char* threads = std::getenv("SHOAL_BENCH_THREADS")) {
    return std::atoi(threads);
  }
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Runs work(thread) on all threads; the best rate of several tries, where each counts `amount`.
template <class Work>
double BestRate(double amount, const Work& work) {
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = Seconds();
    std::vector<std::thread> threads;
    for (int t = 0; t < NumThreads(); ++t) {
      threads.emplace_back([&work, t] { work(t); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    best = std::max(best, amount / (Seconds() - start));
  }
  return best;
}

double ReadBandwidth() {
  static const double rate = [] {
    const size_t words = kFootprint / sizeof(uint64_t);
    std::vector<uint64_t> memory(words, 1);
    return BestRate(static_cast<double>(kFootprint), [&](int t) {
      const size_t begin = words * t / NumThreads();
      const size_t end = words * (t + 1) / NumThreads();
      __m128i a = {}, b = {}, c = {}, d = {};
      for (size_t i = begin; i + 8 <= end; i += 8) {
        const auto* from = reinterpret_cast<const __m128i*>(&memory[i]);
        a = _mm_add_epi64(a, _mm_loadu_si128(from));
        b = _mm_add_epi64(b, _mm_loadu_si128(from + 1));
        c = _mm_add_epi64(c, _mm_loadu_si128(from + 2));
        d = _mm_add_epi64(d, _mm_loadu_si128(from + 3));
      }
      a = _mm_add_epi64(_mm_add_epi64(a, b), _mm_add_epi64(c, d));
      benchmark::DoNotOptimize(a);
    });
  }();
  return rate;
}

constexpr int64_t kPeakRounds = 5'000'000;

// Twelve independent chains of one instruction, in registers of their own.
#define SHOAL_CHAINS(instruction)                                                                  \
  for (int64_t round = 0; round < kPeakRounds; ++round) {                                          \
    asm volatile(instruction                                                                       \
                 " %%zmm0, %%zmm1, %%zmm4\n" instruction " %%zmm0, %%zmm1, %%zmm5\n" instruction   \
                 " %%zmm0, %%zmm1, %%zmm6\n" instruction " %%zmm0, %%zmm1, %%zmm7\n" instruction   \
                 " %%zmm0, %%zmm1, %%zmm8\n" instruction " %%zmm0, %%zmm1, %%zmm9\n" instruction   \
                 " %%zmm0, %%zmm1, %%zmm10\n" instruction " %%zmm0, %%zmm1, %%zmm11\n" instruction \
                 " %%zmm0, %%zmm1, %%zmm12\n" instruction " %%zmm0, %%zmm1, %%zmm13\n" instruction \
                 " %%zmm0, %%zmm1, %%zmm14\n" instruction " %%zmm0, %%zmm1, %%zmm15\n"             \
                 :                                                                                 \
                 :                                                                                 \
                 : "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",      \
                   "xmm13", "xmm14", "xmm15");                                                     \
  }

void DotRounds() { SHOAL_CHAINS("vpdpbusd") }
void FmaRounds() {
  asm volatile("vpxor %%xmm0, %%xmm0, %%xmm0\n vpxor %%xmm1, %%xmm1, %%xmm1" : : : "xmm0", "xmm1");
  SHOAL_CHAINS("vfmadd231ps")
}

double PeakOperations(bool quantized) {
  static double peaks[2] = {};
  double& peak = peaks[quantized];
  if (peak == 0 && IsaSupported(Isa::kAvx512)) {
    const double per_round = 12.0 * (quantized ? 128 : 32);
    peak = BestRate(per_round * kPeakRounds * NumThreads(),
                    [&](int) { quantized ? DotRounds() : FmaRounds(); });
  }
  return peak;
}

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
  explicit Weights(DType type, Backend* backend) {
    const int64_t row_bytes = RowBytes(type, kCols);
    const std::vector<uint8_t> file = RandomRows(type, kOutputs, row_bytes);
    size_t total = 0;
    while (total < kFootprint) {
      auto matrix = backend->Pack({.type = type,
                                   .data = file.data(),
                                   .row_bytes = row_bytes,
                                   .cols = kCols,
                                   .row_begin = 0,
                                   .row_end = kOutputs,
                                   .col_begin = 0,
                                   .col_end = kCols});
      CHECK(matrix.ok()) << matrix.status();
      total += (*matrix)->size_bytes();
      copies.push_back(*std::move(matrix));
    }
  }
  std::vector<std::unique_ptr<PackedMatrix>> copies;
};

void MatMul(benchmark::State& state, Backend* backend, DType type, bool tree) {
  static DType packed_type = DType::kI8;
  static std::unique_ptr<Weights> weights;  // of one type at a time
  if (packed_type != type) {
    weights.reset();
    weights = std::make_unique<Weights>(type, backend);
    packed_type = type;
  }
  const int64_t rows = state.range(0);
  std::vector<float> x(rows * kCols);
  std::mt19937 random(2);
  for (float& value : x) {
    value = static_cast<float>(random() % 2001) * 1e-3f - 1.0f;
  }
  std::vector<int8_t> q(rows * kCols);
  std::vector<float> scale(rows * kCols / 32), out(rows * kOutputs);
  std::vector<int32_t> sum(rows * kCols / 32);
  MatMulArgs args{.xq = {q.data(), scale.data(), sum.data(), rows, kCols},
                  .x = x.data(),
                  .x_stride = kCols,
                  .rows = rows,
                  .split = {},
                  .bias = nullptr,
                  .out = out.data(),
                  .out_stride = kOutputs,
                  .root_stride = 0};
  if (tree) {
    args.split.num_leaves = kMaxLeaves;
    args.split.num_steps = kMaxLeaves - 1;
    args.split.num_roots = 1;
    for (int i = 0; i < kMaxLeaves; ++i) {
      args.split.leaf_ends[i] = kCols / kMaxLeaves * (i + 1);
    }
    const JoinStep steps[] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {4, 6}, {0, 4}};
    std::copy(std::begin(steps), std::end(steps), args.split.steps);
  }
  backend->Quantize({.x = x.data(), .x_stride = kCols, .out = args.xq});
  size_t next = 0;
  for (auto _ : state) {
    const PackedWeight* segment = weights->copies[next]->weight();
    args.segments = &segment;
    args.num_segments = 1;
    backend->MatMul(args);
    next = (next + 1) % weights->copies.size();
  }
  backend->Synchronize();
  using benchmark::Counter;
  const double iterations = static_cast<double>(state.iterations());
  const double bytes = iterations * weights->copies[0]->size_bytes();
  const double operations = iterations * 2.0 * kOutputs * kCols * rows;
  state.counters["GB/s"] = Counter(bytes / 1e9, Counter::kIsRate);
  state.counters["GOP/s"] = Counter(operations / 1e9, Counter::kIsRate);
  state.counters["of_read"] = Counter(bytes / ReadBandwidth(), Counter::kIsRate);
  if (const double peak = PeakOperations(IsQuantized(type)); peak > 0) {
    state.counters["of_peak"] = Counter(operations / peak, Counter::kIsRate);
  }
}

}  // namespace
}  // namespace shoal::kernels

int main(int argc, char** argv) {
  using namespace shoal::kernels;
  auto backend = NewCpuBackend({.threads = NumThreads(), .cpus = {}, .isa = {}});
  CHECK(backend.ok()) << backend.status();
  std::printf("%s, %d threads: reads %.1f GB/s, int8 %.0f GOP/s, f32 %.0f GFLOP/s\n",
              std::string((*backend)->name()).c_str(), NumThreads(), ReadBandwidth() / 1e9,
              PeakOperations(true) / 1e9, PeakOperations(false) / 1e9);
  for (const DType type :
       {DType::kQ4_0, DType::kQ4_1, DType::kQ4_K, DType::kQ8_0, DType::kQ5_0, DType::kQ5_1,
        DType::kQ5_K, DType::kQ6_K, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool tree : {false, true}) {
      const std::string name = std::string(TraitsOf(type).name) + (tree ? "_tree" : "");
      auto* bench = benchmark::RegisterBenchmark(name.c_str(), MatMul, backend->get(), type, tree);
      bench->Unit(benchmark::kMicrosecond);
      for (const int rows : {1, 2, 4, 8, 16, 32, 64, 512}) {
        bench->Arg(rows);
      }
      if (!UseCpuTime()) {
        bench->UseRealTime();
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
