#pragma once

#include <string>

#include "model/graph/graph.h"
#include "model/graph/program.h"

namespace shoal::graph {

// For people and for tests: one line for each node, values numbered in the order of appearance.
// T stands for the tokens of a step, R for its output rows.
std::string ToText(const Graph& graph);
std::string ToText(const Program& program);

// Graphviz.
std::string ToDot(const Graph& graph);
std::string ToDot(const Program& program);

}  // namespace shoal::graph
