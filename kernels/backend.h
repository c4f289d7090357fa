#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/ops.h"

namespace shoal::kernels {

// Device memory, owned by whoever holds the handle; aligned to 64 bytes, contents undefined.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() const = 0;
  virtual size_t size_bytes() const = 0;
};

// A part of a weight matrix as it lies in a model file (host memory): rows [row_begin, row_end) and
// columns [col_begin, col_end) of a [rows, cols] matrix whose rows are `row_bytes` apart.
// REQUIRES for quantised types: col_begin and col_end are multiples of 32.
struct WeightSlice {
  DType type{};
  const void* data = nullptr;
  int64_t row_bytes = 0;
  int64_t cols = 0;  // of the whole row in the file
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t col_begin = 0;
  int64_t col_end = 0;
};

// One weight packed for a backend's products. Owns its memory.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual const PackedWeight* weight() const = 0;
  virtual int64_t rows() const = 0;
  virtual int64_t cols() const = 0;
  virtual bool quantized() const = 0;  // reads MatMulArgs::xq rather than x
  virtual size_t size_bytes() const = 0;
};

// The hardware abstraction: memory, packing, the op table. Ops are enqueued in order on the
// backend's one queue; their results may be read after Synchronize(). One thread drives a backend.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual absl::string_view name()
      const = 0;  // "reference", "cpu-avx512", "cpu-avx2", "cpu-portable"

  // Backends with equal numerics ids give equal bits. (All of the CPU's instruction sets share
  // one.)
  virtual absl::string_view numerics_id() const = 0;

  // RESOURCE_EXHAUSTED naming `what` and the bytes when memory is not to be had.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes,
                                                           absl::string_view what) = 0;

  // INVALID_ARGUMENT for a type without packing or borders that cut a block.
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const WeightSlice& slice) = 0;

  virtual void Upload(void* device, const void* host, size_t bytes) = 0;
  virtual void Download(void* host, const void* device, size_t bytes) = 0;
  virtual void Synchronize() = 0;

  virtual void Embed(const EmbedArgs& args) = 0;
  virtual void RmsNorm(const RmsNormArgs& args) = 0;
  virtual void Quantize(const QuantizeArgs& args) = 0;
  virtual void MatMul(const MatMulArgs& args) = 0;
  virtual void JoinAdd(const JoinAddArgs& args) = 0;
  virtual void Rope(const RopeArgs& args) = 0;
  virtual void KvStore(const KvStoreArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void SwiGlu(const SwiGluArgs& args) = 0;
  virtual void GatherRows(const GatherRowsArgs& args) = 0;
};

}  // namespace shoal::kernels
