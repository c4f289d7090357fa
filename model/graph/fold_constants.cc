#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/reference/rope_table.h"
#include "model/graph/passes.h"

namespace shoal::graph {
namespace {

// The constant of this name; `make` gives its shape and values if there is none yet.
template <typename Make>
ConstantId FindOrAdd(std::string name, Graph* graph, const Make& make) {
  const ConstantId found = graph->FindConstant(name);
  if (found != kNoConstant) {
    return found;
  }
  Constant constant = make();
  constant.name = std::move(name);
  graph->constants.push_back(std::move(constant));
  return static_cast<ConstantId>(graph->constants.size()) - 1;
}

bool Match(const VectorInput& input) { return !input.parts.empty(); }

absl::Status Rewrite(const model::Weights& weights, Graph* graph, VectorInput* input) {
  for (const VectorUse& part : input->parts) {
    SHOAL_RETURN_IF_ERROR(model::CheckFinite(weights.Get(part.tensor), 0, 1));
  }
  const std::string name =
      absl::StrJoin(input->parts, "+", [](std::string* out, const VectorUse& part) {
        absl::StrAppend(out, part.tensor, "[", part.begin, ",", part.end, ")");
      });
  input->constant = FindOrAdd(name, graph, [&] {
    Constant constant;
    for (const VectorUse& part : input->parts) {
      const std::vector<float> values = weights.Vector(part.tensor);
      constant.values.insert(constant.values.end(), values.begin() + part.begin,
                             values.begin() + part.end);
    }
    constant.shape = {static_cast<int64_t>(constant.values.size())};
    return constant;
  });
  input->parts.clear();
  return absl::OkStatus();
}

bool Match(const RopeOp& rope) { return rope.table == kNoConstant; }

// What divides the angles of each pair.
std::vector<float> FrequencyFactors(const model::Weights& weights, const RopeOp& rope) {
  return rope.freq_factors.empty() ? std::vector<float>(rope.rope_dim / 2, rope.linear_factor)
                                   : weights.Vector(rope.freq_factors);
}

// Factors come from the file; the table is good up to a limit of its own.
absl::Status CheckAngles(const RopeOp& rope, absl::Span<const float> factors,
                         int64_t max_positions) {
  constexpr double kMaxAngle = 1.5e6;
  for (size_t i = 0; i < factors.size(); ++i) {
    const double turn = 1 / (std::pow(rope.base, 2.0 * i / rope.rope_dim) * factors[i]);
    const double angle = turn * static_cast<double>(max_positions);
    if (!(factors[i] > 0 && angle <= kMaxAngle)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rope: pair ", i, " with factor ", factors[i], " and base ", rope.base, " turns by ",
          angle, " at position ", max_positions, "; expected a positive factor and at most ",
          kMaxAngle, "; lower --max-seq-len or correct the file"));
    }
  }
  return absl::OkStatus();
}

absl::Status Rewrite(const model::Weights& weights, int64_t max_positions, Graph* graph,
                     RopeOp* rope) {
  const std::string name = absl::StrCat(
      "rope(base=", rope->base, ", dim=", rope->rope_dim,
      rope->freq_factors.empty() ? "" : absl::StrCat(", factors=", rope->freq_factors),
      rope->linear_factor == 1 ? "" : absl::StrCat(", linear=", rope->linear_factor), ")");
  const std::vector<float> factors = FrequencyFactors(weights, *rope);
  SHOAL_RETURN_IF_ERROR(CheckAngles(*rope, factors, max_positions));
  rope->table = FindOrAdd(name, graph, [&] {
    Constant constant;
    constant.shape = {max_positions, rope->rope_dim};
    constant.values.resize(max_positions * rope->rope_dim);
    kernels::BuildRopeTable(static_cast<int>(max_positions), static_cast<int>(rope->rope_dim),
                            rope->base, factors.data(), constant.values.data());
    return constant;
  });
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> FoldConstants(const model::Weights& weights, int64_t max_positions,
                                   Graph* graph) {
  bool changed = false;
  const auto fold = [&](VectorInput* input) {
    if (!Match(*input)) {
      return absl::OkStatus();
    }
    changed = true;
    return Rewrite(weights, graph, input);
  };
  for (Node& node : graph->nodes) {
    if (auto* norm = std::get_if<RmsNormOp>(&node.op)) {
      SHOAL_RETURN_IF_ERROR(fold(&norm->weight));
    } else if (auto* matmul = std::get_if<MatMulOp>(&node.op)) {
      SHOAL_RETURN_IF_ERROR(fold(&matmul->bias));
    } else if (auto* add = std::get_if<JoinAddOp>(&node.op)) {
      SHOAL_RETURN_IF_ERROR(fold(&add->norm_weight));
    } else if (auto* rope = std::get_if<RopeOp>(&node.op); rope != nullptr && Match(*rope)) {
      SHOAL_RETURN_IF_ERROR(Rewrite(weights, max_positions, graph, rope));
      changed = true;
    }
  }
  return changed;
}

}  // namespace shoal::graph
