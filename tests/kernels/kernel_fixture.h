#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/quant/block_formats.h"
#include "kernels/quant/float16.h"
#include "kernels/quant/quantize.h"
#include "kernels/reference/reference_backend.h"

namespace shoal::kernels {

// Random numbers that are the same on every machine.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  uint32_t Bits() { return static_cast<uint32_t>(engine_()); }
  int64_t Below(int64_t limit) { return Bits() % limit; }
  float Uniform() { return static_cast<float>(Bits() % 2000001) * 1e-6f - 1.0f; }  // [-1, 1]

  std::vector<float> Floats(int64_t n, float scale = 1.0f) {
    std::vector<float> result(n);
    for (float& x : result) {
      x = Uniform() * scale;
    }
    return result;
  }

 private:
  std::mt19937 engine_;
};

// Quantised rows with their memory.
struct OwnedQuantized {
  OwnedQuantized(int64_t rows, int64_t width)
      : q(rows * width), scale(rows * width / 32), sum(rows * width / 32) {
    view = {q.data(), scale.data(), sum.data(), rows, width};
  }
  OwnedQuantized(const OwnedQuantized&) = delete;
  OwnedQuantized& operator=(const OwnedQuantized&) = delete;

  // [rows, width] of scale * q.
  std::vector<float> Dequantized() const {
    std::vector<float> result(view.rows * view.width);
    for (int64_t row = 0; row < view.rows; ++row) {
      for (int64_t k = 0; k < view.width; ++k) {
        const int64_t at = k / 32 * view.rows + row;
        result[row * view.width + k] = scale[at] * static_cast<float>(q[at * 32 + k % 32]);
      }
    }
    return result;
  }

  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<int32_t> sum;
  QuantizedRows view;
};

struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};

// The CPU backends of this machine: every instruction set with 1, 2 and 3 threads.
inline const std::vector<NamedBackend>& CpuBackends() {
  static const auto* const backends = [] {
    auto* result = new std::vector<NamedBackend>;
    for (const Isa isa : SupportedIsas()) {
      for (const int threads : {1, 2, 3}) {
        auto backend = NewCpuBackend({.threads = threads, .cpus = {}, .isa = isa});
        CHECK(backend.ok()) << backend.status();
        result->push_back({std::string((*backend)->name()) + " x " + std::to_string(threads),
                           *std::move(backend)});
      }
    }
    return result;
  }();
  return *backends;
}

inline Backend& ReferenceBackend() {
  static Backend* const backend = NewReferenceBackend().release();
  return *backend;
}

// How far a result may be from the reference: absolute + relative * |reference|.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

using Run = std::function<std::vector<float>(Backend&)>;

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// FNV-1a over the bits. The kernels' order of operations is part of the numerics id "cpu-1": where
// a test expects a hash, a change of it needs another id (docs/decisions/0001-determinism.md).
inline uint64_t HashOfBits(const std::vector<float>& values) {
  uint64_t hash = 1469598103934665603u;
  for (const float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * 1099511628211u;
  }
  return hash;
}

inline void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected,
                       Tolerance tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double limit = tolerance.absolute + tolerance.relative * std::fabs(expected[i]);
    // (Written so that a NaN fails.)
    ASSERT_TRUE(std::fabs(double{actual[i]} - expected[i]) <= limit)
        << "at " << i << ": " << actual[i] << " for " << expected[i] << ", limit " << limit;
  }
}

// `run` on every CPU backend gives the same bits, near those of the reference.
inline void ExpectBackendsAgree(const Run& run, Tolerance tolerance) {
  const std::vector<float> expected = run(ReferenceBackend());
  const std::vector<float> first = run(*CpuBackends().front().backend);
  ASSERT_NO_FATAL_FAILURE(ExpectNear(first, expected, tolerance));
  for (const NamedBackend& cpu : CpuBackends()) {
    const std::vector<float> result = run(*cpu.backend);
    ASSERT_TRUE(SameBits(result, first))
        << cpu.name << " differs from " << CpuBackends().front().name;
  }
}

}  // namespace shoal::kernels
