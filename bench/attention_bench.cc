// Speed of the CPU's paged attention: decodes of long and of many short sequences, prefill, and
// mixes of both, beside what this machine reads and multiplies at best in the same run.
//
//   attention_bench [--benchmark_filter=decode/1b]
//   SHOAL_BENCH_ISA=avx2      default: the best of this machine
//   (threads and time: bench/machine_limits.h)
//
// of_read is the bytes of K and V that a step reads, once per sequence, over the measured read
// bandwidth; of_peak is operations per second (4 x head_dim for a query head and a position) over
// the f32 FMA peak.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/machine_limits.h"
#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/quant/kv_type.h"

namespace shoal::kernels {
namespace {

constexpr size_t kFootprint = size_t{192} << 20;  // bytes of KV that decodes cycle through

struct Heads {
  const char* name;
  int32_t heads, kv_heads, head_dim;
};

struct Sequence {
  int64_t cached, rows;
};

struct Step {
  std::string name;
  std::vector<Sequence> sequences;
};

// Several copies ("layers") of a step's KV, its queries and its layout.
class AttentionCase {
 public:
  AttentionCase(const Heads& heads, KvType type, const Step& step) : heads_(heads), type_(type) {
    int32_t pages = 0;
    begin_.push_back(0);
    for (const Sequence& s : step.sequences) {
      const int64_t count = (s.cached + s.rows + kPageTokens - 1) / kPageTokens;
      tables_.emplace_back(count);
      pages += static_cast<int32_t>(count);
      for (int64_t p = s.cached; p < s.cached + s.rows; ++p) {
        positions_.push_back(static_cast<int32_t>(p));
        flops_ += 4.0 * heads.heads * heads.head_dim * static_cast<double>(p + 1);
      }
      begin_.push_back(static_cast<int32_t>(positions_.size()));
    }
    num_pages_ = pages;
    std::mt19937 random(1);
    std::vector<int32_t> order(pages);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    auto next = order.begin();
    for (std::vector<int32_t>& table : tables_) {
      std::copy_n(next, table.size(), table.begin());
      next += table.size();
      table_pointers_.push_back(table.data());
    }
    for (int32_t head = 0; head < heads.heads; ++head) {
      kv_head_of_.push_back(head * heads.kv_heads / heads.heads);
    }
    width_ = int64_t{heads.heads} * heads.head_dim;
    q_.resize(positions_.size() * width_);
    for (float& x : q_) {
      x = static_cast<float>(random() % 2001) * 1e-3f - 1.0f;
    }
    out_.resize(q_.size());
  }

  double kv_bytes() const {
    return static_cast<double>(num_pages_ * KvPageBytes(type_, heads_.kv_heads, heads_.head_dim));
  }
  double flops() const { return flops_; }

  // Fills the pages of as many layers as exceed the caches.
  void FillPages(Backend* backend) {
    const auto bytes = static_cast<size_t>(kv_bytes());
    layers_ = std::max<size_t>(1, kFootprint / bytes);
    auto memory = backend->Allocate(layers_ * bytes, "the benchmark's KV");
    CHECK(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    std::mt19937 random(2);
    const int64_t kv_width = int64_t{heads_.kv_heads} * heads_.head_dim;
    std::vector<float> k(kPageTokens * kv_width), v(k.size());
    for (size_t i = 0; i < k.size(); ++i) {
      k[i] = static_cast<float>(random() % 2001) * 1e-3f - 1.0f;
      v[i] = static_cast<float>(random() % 2001) * 1e-3f - 1.0f;
    }
    std::vector<int32_t> positions(kPageTokens);
    std::iota(positions.begin(), positions.end(), 0);
    const int32_t begin[] = {0, kPageTokens};
    for (size_t layer = 0; layer < layers_; ++layer) {
      for (int32_t page = 0; page < num_pages_; ++page) {
        const int32_t* table = &page;
        backend->KvStore({.k = k.data(),
                          .v = v.data(),
                          .stride = kv_width,
                          .layout = {.rows = kPageTokens,
                                     .num_seqs = 1,
                                     .seq_row_begin = begin,
                                     .positions = positions.data(),
                                     .block_tables = &table},
                          .pages = Pages(layer)});
      }
    }
  }

  AttentionArgs Args(size_t step) {
    return {.q = q_.data(),
            .q_stride = width_,
            .heads = heads_.heads,
            .kv_head_of = kv_head_of_.data(),
            .scale = 0.125f,
            .layout = {.rows = static_cast<int64_t>(positions_.size()),
                       .num_seqs = static_cast<int32_t>(tables_.size()),
                       .seq_row_begin = begin_.data(),
                       .positions = positions_.data(),
                       .block_tables = table_pointers_.data()},
            .pages = Pages(step % layers_),
            .out = out_.data(),
            .out_stride = width_};
  }

 private:
  KvPages Pages(size_t layer) const {
    return {.base = static_cast<char*>(memory_->data()) + layer * static_cast<size_t>(kv_bytes()),
            .type = type_,
            .num_pages = num_pages_,
            .kv_heads = heads_.kv_heads,
            .head_dim = heads_.head_dim};
  }

  const Heads heads_;
  const KvType type_;
  int64_t width_ = 0;
  int32_t num_pages_ = 0;
  size_t layers_ = 1;
  double flops_ = 0;
  std::vector<int32_t> begin_, positions_, kv_head_of_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<const int32_t*> table_pointers_;
  std::vector<float> q_, out_;
  std::unique_ptr<Buffer> memory_;
};

void RunAttention(benchmark::State& state, Backend* backend, const Heads& heads, KvType type,
                  const Step& step) {
  AttentionCase attention(heads, type, step);
  attention.FillPages(backend);
  size_t next = 0;
  for (auto _ : state) {
    backend->Attention(attention.Args(next++));
  }
  backend->Synchronize();
  using benchmark::Counter;
  const double iterations = static_cast<double>(state.iterations());
  const double bytes = iterations * attention.kv_bytes();
  const double flops = iterations * attention.flops();
  state.counters["GB/s"] = Counter(bytes / 1e9, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(flops / 1e9, Counter::kIsRate);
  state.counters["of_read"] = Counter(bytes / bench::ReadBandwidth(), Counter::kIsRate);
  if (bench::PeakFloat() > 0) {
    state.counters["of_peak"] = Counter(flops / bench::PeakFloat(), Counter::kIsRate);
  }
}

std::vector<Step> Steps() {
  const auto many = [](int n, int64_t cached) {
    return std::vector<Sequence>(n, Sequence{cached, 1});
  };
  std::vector<Step> steps = {
      {"decode_4096", many(1, 4095)},        {"decode_16384", many(1, 16383)},
      {"decode_16x192", many(16, 191)},      {"decode_4x1000", many(4, 999)},
      {"decode_1x256", many(1, 255)},        {"prefill_512", {{0, 512}}},
      {"prefill_512_at_3584", {{3584, 512}}}};
  std::vector<Sequence> mix = many(15, 300);
  mix.push_back({16000, 1});
  mix.push_back({0, 64});
  steps.push_back({"mix", mix});
  return steps;
}

Isa IsaFromEnvironment() {
  const char* name = std::getenv("SHOAL_BENCH_ISA");
  for (const Isa isa : SupportedIsas()) {
    if (name != nullptr && IsaName(isa) == name) {
      return isa;
    }
  }
  return BestIsa();
}

}  // namespace
}  // namespace shoal::kernels

int main(int argc, char** argv) {
  using namespace shoal::kernels;
  namespace bench = shoal::bench;
  auto backend =
      NewCpuBackend({.threads = bench::NumThreads(), .cpus = {}, .isa = IsaFromEnvironment()});
  CHECK(backend.ok()) << backend.status();
  std::printf("%s, %d threads: reads %.1f GB/s, f32 %.0f GFLOP/s\n",
              std::string((*backend)->name()).c_str(), bench::NumThreads(),
              bench::ReadBandwidth() / 1e9, bench::PeakFloat() / 1e9);
  const Heads all_heads[] = {
      {"smollm2_135m", 9, 3, 64}, {"llama_1b", 32, 8, 64}, {"tinyllama_1b", 32, 4, 64}};
  for (const Heads& heads : all_heads) {
    for (const KvType type : {KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kF32}) {
      for (const Step& step : Steps()) {
        const std::string name = step.name + "/" + heads.name + "/" + std::string(KvTypeName(type));
        auto* run = benchmark::RegisterBenchmark(
            name.c_str(), [=, backend = backend->get()](benchmark::State& state) {
              RunAttention(state, backend, heads, type, step);
            });
        run->Unit(benchmark::kMicrosecond);
        if (!bench::UseCpuTime()) {
          run->UseRealTime();
        }
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
