#pragma once

#include <string>
#include <vector>

#include "model/graph/graph.h"
#include "model/graph/program.h"

// The pieces of dumps: what stands between an op's brackets.
namespace shoal::graph {

// "f32[T,64]", "q8[T,64]", "f32[2 parts,T,64]", "kv"
std::string ValueText(const Value& value);

std::string OpDetails(const Op& op, const std::vector<Constant>& constants);

// Operands with their places: "x=4096[64/192]" begins at byte 4096 of the workspace and has 64
// columns of rows of 192.
std::string StepDetails(const Step& step, const Program& program);

}  // namespace shoal::graph
