#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/config.h"
#include "model/graph/graph.h"
#include "model/weights.h"
#include "parallel/join_tree.h"

// The passes, one file each. All return whether they changed the graph, and change nothing when
// they run again on their own result. None changes a bit of the logits.
namespace shoal::graph {

// Keeps the part of the model that one shard computes. Queries, gate, up and the head are cut by
// rows; keys and values by heads, a head that two shards use being held by both; attention output
// and down by columns, their partial sums gathered from all shards and added in the order of
// parallel::JoinTree (also with one shard: the order of sums must not depend on tp).
// INVALID_ARGUMENT when the model cannot be cut in `tp` parts; lists the legal sizes.
absl::StatusOr<bool> ShardTensorParallel(const model::ModelConfig& config, int tp, int shard,
                                         Graph* graph);

// Keeps the layers of one pipeline stage. What crosses a border, one value, is sent by the last
// node of a stage and received by the first of the next. The first stage embeds, the last has the
// head. `layers` are those of each stage (parallel::SplitLayers). REQUIRES: ShardTensorParallel has
// run.
bool SplitPipeline(const std::vector<parallel::Range>& layers, int stage, Graph* graph);

// The layers of each of pp stages: as `counts` says, or, if that is empty, so that the weights read
// for a token are spread as evenly as can be; the head's count half, as prompts do not need it.
// `graph`: of the whole model. INVALID_ARGUMENT when a stage would have none, or the counts are not
// the model's.
absl::StatusOr<std::vector<parallel::Range>> StageLayers(const Graph& graph, int pp,
                                                         absl::Span<const int64_t> counts);

// One product for all that read the same rows: q, k, v; gate, up.
bool MergeProducts(Graph* graph);

// Reads norms and biases from the file and computes the rope table for max_positions positions.
// INVALID_ARGUMENT when a value is not finite, or the file's rope factors are no positive numbers
// or turn too far for the table.
absl::StatusOr<bool> FoldConstants(const model::Weights& weights, int64_t max_positions,
                                   Graph* graph);

// Quantises the rows that go into products with quantised weights, once for all products.
bool QuantizeActivations(Graph* graph);

// Add + norm, norm + quantise, SwiGLU + quantise become one op; the rotations of q and k one.
bool Fuse(Graph* graph);

// Drops nodes and outputs that nobody reads.
bool EliminateDead(Graph* graph);

// Which passes to run besides those that Lower() needs: all are on except in tests.
struct PassOptions {
  bool merge_products = true;
  bool fuse = true;
};

// The part of the model that a rank has.
struct Placement {
  int tp = 1;
  int shard = 0;
  int pp = 1;
  int stage = 0;
  std::vector<int64_t> stage_layers = {};  // of each stage; empty: see StageLayers
};

// Everything between BuildGraph() and Lower(), in order. Errors: those of the passes.
absl::Status RunPasses(const model::ModelConfig& config, const model::Weights& weights,
                       const Placement& placement, int64_t max_positions,
                       const PassOptions& options, Graph* graph);

}  // namespace shoal::graph
