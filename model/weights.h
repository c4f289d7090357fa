#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/quant/block_formats.h"
#include "model/config.h"
#include "model/formats/gguf.h"

namespace shoal::model {

// One tensor of a model as a matrix [rows, cols] whose rows lie row_bytes apart; a vector has one
// row. Borrows the file's bytes.
struct WeightRef {
  std::string name;
  kernels::DType type{};
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_bytes = 0;
  const void* data = nullptr;
};

// INVALID_ARGUMENT, with the tensor and the row, if one of the rows [row_begin, row_end) has a
// value that is no finite number: products would turn it into wrong tokens, not into an error.
// Reads the rows once. REQUIRES: 0 <= row_begin <= row_end <= ref.rows.
absl::Status CheckFinite(const WeightRef& ref, int64_t row_begin, int64_t row_end);

// What a model of this configuration must hold. Vectors (norms, biases) have rows == 1.
struct ExpectedTensor {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  bool may_be_padded = false;  // more rows may follow, which are left out
};
std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config);

// The tensors of one model, by name: exactly those of ExpectedTensors(), each of the right shape
// and of a type that can be a weight. Immutable; any thread. Borrows the file, which must outlive
// it.
class Weights {
 public:
  // NOT_FOUND for a missing tensor; INVALID_ARGUMENT for a shape or type that does not fit;
  // UNIMPLEMENTED for a tensor the architecture has no use for, since leaving it out would give
  // wrong answers. Messages name the tensor, what was found and what was expected.
  static absl::StatusOr<Weights> Create(const GgufFile& file, const ModelConfig& config);

  const WeightRef* Find(absl::string_view name) const;  // nullptr: not there
  const WeightRef& Get(absl::string_view name) const;   // CHECKs: one of ExpectedTensors()

  // A vector's values as floats. CHECKs: rows == 1.
  std::vector<float> Vector(absl::string_view name) const;

  int64_t num_tensors() const { return static_cast<int64_t>(by_name_.size()); }

 private:
  absl::flat_hash_map<std::string, WeightRef> by_name_;
};

}  // namespace shoal::model
