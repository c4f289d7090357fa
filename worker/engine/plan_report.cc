#include "worker/engine/plan_report.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "parallel/topology.h"

namespace shoal::worker {
namespace {

int64_t ContextTokens(const model::MemoryPlan& plan) {
  return plan.num_blocks * plan.demand.block_tokens;
}

std::string Size(int64_t bytes) {
  return bytes >= (int64_t{1} << 30)
             ? absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (1 << 30))
             : absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

int64_t PlanReport::context_tokens() const {
  int64_t tokens = std::numeric_limits<int64_t>::max();
  for (const model::MemoryPlan& plan : ranks) tokens = std::min(tokens, ContextTokens(plan));
  return tokens;
}

absl::StatusOr<PlanReport> PlanRanks(const std::string& path, RankModel::Options options,
                                     int64_t device_bytes) {
  SHOAL_ASSIGN_OR_RETURN(const auto file,
                         model::GgufFile::Open(path, model::FileBytes::Mode::kMap));
  SHOAL_ASSIGN_OR_RETURN(const parallel::Topology topology,
                         parallel::Topology::Create(options.tp, options.pp));
  const int num_ranks = topology.world_size();
  options.available_bytes =
      device_bytes > 0 ? device_bytes * num_ranks : model::ReadAvailableMemory();
  PlanReport report;
  report.model = path;
  report.memory_bytes = options.available_bytes / num_ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    options.shard = topology.shard_of(rank);
    options.stage = topology.stage_of(rank);
    absl::StatusOr<model::MemoryPlan> plan = RankModel::Plan(*file, options);
    if (!plan.ok()) {
      return absl::Status(plan.status().code(),
                          absl::StrCat("rank ", rank, ": ", plan.status().message()));
    }
    report.ranks.push_back(*std::move(plan));
  }
  SHOAL_ASSIGN_OR_RETURN(const model::ModelConfig config, model::ParseConfig(*file));
  report.max_seq_len = options.max_seq_len > 0 ? options.max_seq_len : config.context_length;
  return report;
}

std::string ToTable(const PlanReport& report) {
  std::string text =
      absl::StrFormat("%4s  %11s  %11s  %11s  %11s  %11s  %14s\n", "RANK", "WEIGHTS", "CONSTANTS",
                      "WORKSPACE", "KV CACHE", "TOTAL", "CONTEXT TOKENS");
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const model::MemoryPlan& plan = report.ranks[rank];
    absl::StrAppendFormat(&text, "%4d  %11s  %11s  %11s  %11s  %11s  %14d\n", rank,
                          Size(plan.demand.weight_bytes), Size(plan.demand.constant_bytes),
                          Size(plan.demand.workspace_bytes), Size(plan.kv_cache_bytes()),
                          Size(plan.total_bytes()), ContextTokens(plan));
  }
  const int64_t tokens = report.context_tokens();
  absl::StrAppend(
      &text, "fits",
      report.memory_bytes > 0 ? absl::StrCat(" into ", Size(report.memory_bytes), " a rank") : "",
      ": ", tokens, " tokens over all sequences, of which one may have ",
      std::min(tokens, report.max_seq_len), "\n");
  if (tokens < report.max_seq_len) {
    absl::StrAppend(&text, "the model's context of ", report.max_seq_len,
                    " tokens does not fit: raise --kv-cache-bytes, take --kv-cache-dtype int8, or "
                    "more ranks\n");
  }
  return text;
}

std::string ToJson(const PlanReport& report) {
  std::string ranks;
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const model::MemoryPlan& plan = report.ranks[rank];
    absl::StrAppendFormat(
        &ranks,
        "%s\n    {\"rank\": %d, \"weight_bytes\": %d, \"constant_bytes\": %d, \"workspace_bytes\": "
        "%d, \"kv_cache_bytes\": %d, \"total_bytes\": %d, \"kv_blocks\": %d, \"context_tokens\": "
        "%d}",
        rank == 0 ? "" : ",", rank, plan.demand.weight_bytes, plan.demand.constant_bytes,
        plan.demand.workspace_bytes, plan.kv_cache_bytes(), plan.total_bytes(), plan.num_blocks,
        ContextTokens(plan));
  }
  return absl::StrFormat(
      "{\n  \"ranks\": [%s\n  ],\n  \"memory_bytes_a_rank\": %d,\n  \"context_tokens\": %d,\n"
      "  \"max_seq_len\": %d\n}\n",
      ranks, report.memory_bytes, report.context_tokens(), report.max_seq_len);
}

}  // namespace shoal::worker
