#include <vector>

#include "base/status_macros.h"
#include "model/graph/passes.h"

namespace shoal::graph {

absl::Status RunPasses(const model::ModelConfig& config, const model::Weights& weights,
                       const Placement& placement, int64_t max_positions,
                       const PassOptions& options, Graph* graph) {
  // Of the whole model: shards may be uneven, and all of a stage must have the same layers.
  SHOAL_ASSIGN_OR_RETURN(const std::vector<parallel::Range> layers,
                         StageLayers(*graph, placement.pp, placement.stage_layers));
  SHOAL_RETURN_IF_ERROR(ShardTensorParallel(config, placement.tp, placement.shard, graph).status());
  SplitPipeline(layers, placement.stage, graph);
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
