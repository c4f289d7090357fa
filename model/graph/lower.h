#pragma once

#include "model/graph/graph.h"
#include "model/graph/program.h"

namespace shoal::graph {

// Turns a graph into a Program: every value gets a place in one workspace whose size depends on
// `limits` alone. Slices are views; rotations and head norms work in place; the sum of an add takes
// the place of its residual; partials are written where they will be gathered.
// Instructions on output rows come last and may run again for other rows of the same step.
// REQUIRES: ShardTensorParallel, FoldConstants and QuantizeActivations have run.
Program Lower(const Graph& graph, const ProgramLimits& limits);

}  // namespace shoal::graph
