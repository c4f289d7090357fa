#include "worker/engine/rank_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/quant/kv_type.h"
#include "model/graph/builder.h"
#include "model/graph/lower.h"
#include "model/graph/passes.h"
#include "parallel/shard.h"

namespace shoal::worker {
namespace {

// Part of the numerics id: raise it when builders or passes change a bit of the result.
constexpr int kGraphRevision = 1;

constexpr int64_t kDefaultBatchTokens = 512;
constexpr int64_t kDefaultBatchSeqs = 64;
constexpr int64_t kMaxBatchTokens = 1 << 16;
constexpr int64_t kMaxBatchSeqs = 1 << 14;
constexpr int64_t kMaxSeqLen = 1 << 20;

absl::Status SetDefault(absl::string_view flag, int64_t fallback, int64_t max, int64_t* value) {
  if (*value == 0) {
    *value = fallback;
  }
  if (*value < 1 || *value > max) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " is ", *value, "; expected 1..", max));
  }
  return absl::OkStatus();
}

absl::StatusOr<RankModel::Options> WithDefaults(RankModel::Options options,
                                                const model::ModelConfig& config) {
  SHOAL_RETURN_IF_ERROR(SetDefault("--max-batch-tokens", kDefaultBatchTokens, kMaxBatchTokens,
                                   &options.max_batch_tokens));
  SHOAL_RETURN_IF_ERROR(
      SetDefault("--max-batch-seqs", kDefaultBatchSeqs, kMaxBatchSeqs, &options.max_batch_seqs));
  const int64_t context = std::min(config.context_length, kMaxSeqLen);
  SHOAL_RETURN_IF_ERROR(SetDefault("--max-seq-len", context, context, &options.max_seq_len));
  if (options.max_output_rows == 0) options.max_output_rows = options.max_batch_seqs;
  if (options.kv_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-cache-bytes is ", options.kv_bytes, "; expected 0 or more"));
  }
  if (options.tp < 1 || options.shard < 0 || options.shard >= options.tp) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shard ", options.shard, " does not exist with tensor parallel size ", options.tp));
  }
  if (options.pp < 1 || options.stage < 0 || options.stage >= options.pp) {
    return absl::InvalidArgumentError(absl::StrCat(
        "stage ", options.stage, " does not exist with pipeline parallel size ", options.pp));
  }
  if (options.available_bytes < 0) {
    options.available_bytes = model::ReadAvailableMemory();
  }
  return options;
}

// The rope table is computed before the whole is planned; a file must not make it exhaust memory.
absl::Status CheckRopeTable(const RankModel::Options& options, const model::ModelConfig& config) {
  const int64_t bytes = options.max_seq_len * config.rope.dim * int64_t{sizeof(float)};
  const int64_t available = options.available_bytes / (int64_t{options.tp} * options.pp);
  if (options.available_bytes > 0 && bytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the rope table of ", options.max_seq_len, " positions takes ", bytes,
                     " bytes but there are ", available, " a rank; lower --max-seq-len"));
  }
  return absl::OkStatus();
}

// What Load and Plan share: everything that needs no memory.
struct Blueprint {
  model::ModelConfig config;
  model::Weights weights;
  RankModel::Options options;
  graph::Program program;
  KvShape kv_shape;
  model::MemoryPlan memory;
};

absl::StatusOr<Blueprint> Draw(const model::GgufFile& file, const RankModel::Options& options) {
  Blueprint blueprint;
  SHOAL_ASSIGN_OR_RETURN(blueprint.config, model::ParseConfig(file));
  SHOAL_ASSIGN_OR_RETURN(blueprint.options, WithDefaults(options, blueprint.config));
  SHOAL_ASSIGN_OR_RETURN(blueprint.weights, model::Weights::Create(file, blueprint.config));
  const RankModel::Options& opts = blueprint.options;
  SHOAL_RETURN_IF_ERROR(CheckRopeTable(opts, blueprint.config));
  graph::Graph graph = graph::BuildGraph(blueprint.config, blueprint.weights);
  const graph::Placement placement{.tp = opts.tp,
                                   .shard = opts.shard,
                                   .pp = opts.pp,
                                   .stage = opts.stage,
                                   .stage_layers = opts.stage_layers};
  SHOAL_RETURN_IF_ERROR(graph::RunPasses(blueprint.config, blueprint.weights, placement,
                                         opts.max_seq_len, graph::PassOptions{}, &graph));
  blueprint.program = graph::Lower(graph, {.max_batch_tokens = opts.max_batch_tokens,
                                           .max_output_rows = opts.max_output_rows,
                                           .max_seq_len = opts.max_seq_len});
  const graph::Program& program = blueprint.program;
  blueprint.kv_shape = {.num_layers = program.num_layers,
                        .kv_heads = program.num_kv_heads,
                        .head_dim = program.head_dim,
                        .type = opts.kv_type};
  model::MemoryDemand demand{.constant_bytes = program.ConstantBytes(),
                             .workspace_bytes = program.workspace_bytes,
                             .bytes_per_block = blueprint.kv_shape.BlockBytes(),
                             .block_tokens = kernels::kPageTokens};
  for (const graph::WeightUse& weight : program.matrices) {
    demand.weight_bytes += model::EstimatePackedBytes(weight.type, weight.rows(), weight.cols());
  }
  for (const graph::Instruction& instruction : program.instructions) {
    if (const auto* embed = std::get_if<graph::EmbedStep>(&instruction.step)) {
      const model::WeightRef& table = blueprint.weights.Get(embed->table);
      demand.weight_bytes += table.rows * table.row_bytes;
    }
  }
  SHOAL_ASSIGN_OR_RETURN(
      blueprint.memory,
      model::PlanMemory(demand, {.max_batch_seqs = opts.max_batch_seqs,
                                 .max_seq_len = opts.max_seq_len,
                                 .kv_cache_bytes = opts.kv_bytes,
                                 .available_bytes = opts.available_bytes,
                                 .ranks_on_machine = int64_t{opts.tp} * opts.pp}));
  return blueprint;
}

absl::StatusOr<std::vector<uint32_t>> VocabShardBegins(int64_t vocab, int tp) {
  std::vector<uint32_t> begins;
  for (int shard = 0; shard < tp; ++shard) {
    SHOAL_ASSIGN_OR_RETURN(const parallel::VocabShard part,
                           parallel::ShardVocab(static_cast<int>(vocab), tp, shard));
    begins.push_back(static_cast<uint32_t>(part.tokens.begin));
  }
  begins.push_back(static_cast<uint32_t>(vocab));
  return begins;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankModel>> RankModel::Load(
    const model::GgufFile& file, const Options& options, std::unique_ptr<kernels::Backend> backend,
    const LoadProgress& progress) {
  SHOAL_ASSIGN_OR_RETURN(Blueprint blueprint, Draw(file, options));
  auto model = std::unique_ptr<RankModel>(new RankModel);
  model->options_ = blueprint.options;
  model->config_ = std::move(blueprint.config);
  model->backend_ = std::move(backend);
  SHOAL_ASSIGN_OR_RETURN(model->vocab_shard_begins_,
                         VocabShardBegins(model->config_.vocab, model->options_.tp));
  model->numerics_id_ = absl::StrCat(model->backend_->numerics_id(), "/graph", kGraphRevision,
                                     "/kv-", kernels::KvTypeName(blueprint.kv_shape.type));
  SHOAL_ASSIGN_OR_RETURN(
      model->executor_,
      Executor::Create(blueprint.weights, std::move(blueprint.program), model->backend_.get(),
                       {.max_batch_seqs = model->options_.max_batch_seqs, .progress = progress}));
  SHOAL_ASSIGN_OR_RETURN(
      model->kv_,
      KvStore::Create(blueprint.kv_shape, blueprint.memory.num_blocks, model->backend_.get()));
  return model;
}

absl::StatusOr<model::MemoryPlan> RankModel::Plan(const model::GgufFile& file,
                                                  const Options& options) {
  SHOAL_ASSIGN_OR_RETURN(const Blueprint blueprint, Draw(file, options));
  return blueprint.memory;
}

size_t RankModel::boundary_bytes() const {
  const auto bytes =
      static_cast<size_t>(options_.max_batch_tokens * config_.hidden) * sizeof(float);
  return (bytes + 63) / 64 * 64;
}

EngineLimits RankModel::limits() const {
  return {.num_blocks = static_cast<uint32_t>(kv_->num_blocks()),
          .max_batch_tokens = static_cast<uint32_t>(options_.max_batch_tokens),
          .max_batch_seqs = static_cast<uint32_t>(options_.max_batch_seqs),
          .max_seq_len = static_cast<uint32_t>(options_.max_seq_len),
          .vocab_size = static_cast<uint32_t>(config_.vocab)};
}

}  // namespace shoal::worker
