#include "base/status_macros.h"
#include "model/graph/passes.h"

namespace shoal::graph {

absl::Status RunPasses(const model::ModelConfig& config, const model::Weights& weights, int tp,
                       int shard, int64_t max_positions, const PassOptions& options, Graph* graph) {
  SHOAL_RETURN_IF_ERROR(ShardTensorParallel(config, tp, shard, graph).status());
  if (options.merge_products) {
    MergeProducts(graph);
  }
  SHOAL_RETURN_IF_ERROR(FoldConstants(weights, max_positions, graph).status());
  QuantizeActivations(graph);
  EliminateDead(graph);
  if (options.fuse) {
    Fuse(graph);
    EliminateDead(graph);
  }
  graph->Validate();
  return absl::OkStatus();
}

}  // namespace shoal::graph
