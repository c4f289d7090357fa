#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/graph/program.h"
#include "model/weights.h"

namespace shoal::worker {

// Bytes of the model file that are packed, and those in all.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

// Kernel arguments with every pointer in place but those that a step brings: rows, tokens,
// positions, layout, pages. The executor fills these in and calls the backend.

struct BoundMatMul {
  kernels::MatMulArgs args;  // out: of part 0
  int64_t first_part = 0;    // parts of earlier shards, each rows * width floats
  int64_t width = 0;
  std::vector<const kernels::PackedWeight*> segments;  // args.segments
};

struct BoundKvStore {
  kernels::KvStoreArgs args;
  int32_t layer = 0;  // of the KV store: counted from the stage's first
};

struct BoundAttention {
  kernels::AttentionArgs args;
  int32_t layer = 0;  // likewise
};

struct BoundAllGather {
  float* parts = nullptr;
  int64_t width = 0;
  std::vector<int64_t> parts_of;    // for each shard
  std::vector<size_t> block_bytes;  // for each shard; space for the step's sizes
};

struct BoundJoinAdd {
  kernels::JoinAddArgs args;
  float* first_part = nullptr;
  std::vector<const float*> parts;       // args.parts; space for the step's addresses
  std::vector<kernels::JoinStep> steps;  // args.steps
};

struct BoundSend {
  const float* x = nullptr;  // [rows, width]
  int64_t width = 0;
};

struct BoundReceive {
  float* out = nullptr;  // [rows, width]
  int64_t width = 0;
};

using BoundStep =
    std::variant<kernels::EmbedArgs, kernels::RmsNormArgs, kernels::QuantizeArgs, BoundMatMul,
                 kernels::RopeArgs, BoundKvStore, BoundAttention, kernels::SwiGluArgs,
                 BoundAllGather, BoundJoinAdd, kernels::GatherRowsArgs, BoundSend, BoundReceive>;

// A Program with its weights packed, its constants uploaded and its workspace allocated. Owns all
// of it. Not thread-safe.
class BoundProgram {
 public:
  // RESOURCE_EXHAUSTED when the backend has no memory; INVALID_ARGUMENT for weights it cannot pack,
  // naming the tensor. Nothing of `weights` is read after this; the backend must outlive the
  // result.
  static absl::StatusOr<std::unique_ptr<BoundProgram>> Create(const model::Weights& weights,
                                                              graph::Program program,
                                                              kernels::Backend* backend,
                                                              const LoadProgress& progress);

  const graph::Program& program() const { return program_; }
  std::vector<BoundStep>& steps() { return steps_; }  // one for each instruction
  const float* logits() const { return logits_; }
  int64_t weight_bytes() const { return weight_bytes_; }  // packed matrices and embedding tables

 private:
  class Binder;

  explicit BoundProgram(graph::Program program) : program_(std::move(program)) {}

  absl::Status Pack(const model::Weights& weights, kernels::Backend* backend,
                    const LoadProgress& progress);
  absl::Status UploadConstants(kernels::Backend* backend);
  absl::Status UploadEmbeddings(const model::Weights& weights, kernels::Backend* backend);

  const graph::Program program_;
  std::vector<std::unique_ptr<kernels::PackedMatrix>> matrices_;
  std::vector<std::unique_ptr<kernels::Buffer>> constants_;
  absl::flat_hash_map<std::string, std::unique_ptr<kernels::Buffer>> embeddings_;  // as in the file
  std::vector<std::unique_ptr<kernels::Buffer>> head_maps_;  // AttentionArgs::kv_head_of
  std::unique_ptr<kernels::Buffer> workspace_;
  std::vector<BoundStep> steps_;
  const float* logits_ = nullptr;
  int64_t weight_bytes_ = 0;
};

}  // namespace shoal::worker
