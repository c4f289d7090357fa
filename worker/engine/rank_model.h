#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/config.h"
#include "model/formats/gguf.h"
#include "model/memory_plan.h"
#include "worker/engine/executor.h"
#include "worker/engine/kv_store.h"
#include "worker/engine/sequence_table.h"

namespace shoal::worker {

// One rank's part of a model, a shard of a stage, ready to run: file -> configuration -> graph ->
// passes -> program -> packed weights and KV cache. Made and used by the rank's loop;
// executor().current_op() apart, one thread.
class RankModel {
 public:
  struct Options {
    int tp = 1;
    int shard = 0;
    int pp = 1;
    int stage = 0;
    std::vector<int64_t> stage_layers = {};  // layers of each stage; empty: graph::StageLayers
    kernels::KvType kv_type = kernels::KvType::kF16;
    int64_t kv_bytes = 0;          // 0: see model::MemoryLimits
    int64_t max_batch_tokens = 0;  // 0: 512
    int64_t max_batch_seqs = 0;    // 0: 64
    int64_t max_seq_len = 0;       // 0: the model's context
    int64_t max_output_rows = 0;   // logits computed at once; 0: max_batch_seqs
    int64_t available_bytes = -1;  // of memory; -1: ask the system, 0: unknown
  };

  // Nothing of `file` is read after this. Refused before weights are read: what config, weights,
  // passes and the memory plan refuse; INVALID_ARGUMENT for limits out of range (messages have the
  // value, the limit and the flag).
  static absl::StatusOr<std::unique_ptr<RankModel>> Load(const model::GgufFile& file,
                                                         const Options& options,
                                                         std::unique_ptr<kernels::Backend> backend,
                                                         const LoadProgress& progress);

  // What Load() would allocate. Reads the file's header and small tensors only.
  static absl::StatusOr<model::MemoryPlan> Plan(const model::GgufFile& file,
                                                const Options& options);

  const model::ModelConfig& config() const { return config_; }
  int tp() const { return options_.tp; }
  int shard() const { return options_.shard; }
  int pp() const { return options_.pp; }
  int stage() const { return options_.stage; }
  bool is_last_stage() const { return stage() == pp() - 1; }
  EngineLimits limits() const;
  // Of what a stage sends to the next in its largest step, a multiple of 64.
  size_t boundary_bytes() const;
  Executor& executor() { return *executor_; }
  KvStore& kv_store() { return *kv_; }

  // First token of each shard's part of the vocabulary, then the vocabulary's size.
  const std::vector<uint32_t>& vocab_shard_begins() const { return vocab_shard_begins_; }

  // Equal ids, equal bits: the backend's kernels, the graph's revision, the KV type.
  const std::string& numerics_id() const { return numerics_id_; }

  int64_t weight_bytes() const { return executor_->weight_bytes(); }
  int64_t kv_bytes() const { return kv_->size_bytes(); }
  int64_t workspace_bytes() const { return executor_->program().workspace_bytes; }

 private:
  RankModel() = default;

  Options options_;  // zeros replaced by what they stand for
  model::ModelConfig config_;
  std::vector<uint32_t> vocab_shard_begins_;
  std::string numerics_id_;
  std::unique_ptr<kernels::Backend> backend_;  // outlives what it has allocated
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<KvStore> kv_;
};

}  // namespace shoal::worker
