#include "model/graph/op_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace shoal::graph {
namespace {

std::string WeightText(const WeightUse& weight) {
  return absl::StrCat(weight.tensor, " ", kernels::TraitsOf(weight.type).name, "[",
                      weight.row_begin, ":", weight.row_end, ",", weight.col_begin, ":",
                      weight.col_end, "]");
}

std::string WeightsText(const std::vector<WeightUse>& weights) {
  return absl::StrJoin(weights, " | ", [](std::string* out, const WeightUse& weight) {
    absl::StrAppend(out, WeightText(weight));
  });
}

std::string ConstantText(ConstantId id, const std::vector<Constant>& constants) {
  return absl::StrCat("const ", constants[id].name);
}

std::string VectorText(const VectorInput& input, const std::vector<Constant>& constants) {
  if (input.constant != kNoConstant) {
    return ConstantText(input.constant, constants);
  }
  return absl::StrJoin(input.parts, " | ", [](std::string* out, const VectorUse& part) {
    absl::StrAppend(out, part.tensor, "[", part.begin, ":", part.end, "]");
  });
}

std::string StepsText(absl::Span<const kernels::JoinStep> steps) {
  return absl::StrCat("{",
                      absl::StrJoin(steps, " ",
                                    [](std::string* out, const auto& step) {
                                      absl::StrAppend(out, step.dst, "+=", step.src);
                                    }),
                      "}");
}

std::string SplitText(const kernels::KSplit& split) {
  if (split.num_roots == 0) {
    return "";
  }
  return absl::StrCat("; leaves ",
                      absl::StrJoin(absl::MakeSpan(split.leaf_ends, split.num_leaves), ","),
                      " joined ", StepsText(absl::MakeSpan(split.steps, split.num_steps)),
                      " roots ", absl::StrJoin(absl::MakeSpan(split.roots, split.num_roots), ","));
}

absl::string_view StyleText(kernels::RopeStyle style) {
  return style == kernels::RopeStyle::kAdjacent ? "adjacent" : "halves";
}

// One overload for each op.
class OpDescriber {
 public:
  explicit OpDescriber(const std::vector<Constant>& constants) : constants_(constants) {}

  std::string operator()(const EmbedOp& op) const { return WeightText(op.table); }
  std::string operator()(const RmsNormOp& op) const {
    return absl::StrCat(VectorText(op.weight, constants_), ", eps ", op.eps,
                        op.per_head ? absl::StrCat(", each of ", op.groups, " heads") : "");
  }
  std::string operator()(const QuantizeOp&) const { return ""; }
  std::string operator()(const MatMulOp& op) const {
    return absl::StrCat(
        WeightsText(op.segments),
        op.bias.empty() ? "" : absl::StrCat("; bias ", VectorText(op.bias, constants_)),
        SplitText(op.split));
  }
  std::string operator()(const SliceOp& op) const { return absl::StrCat("from ", op.begin); }
  std::string operator()(const RopeOp& op) const {
    const std::string angles =
        op.table != kNoConstant
            ? ConstantText(op.table, constants_)
            : absl::StrCat("base ", op.base,
                           op.linear_factor == 1 ? "" : absl::StrCat(" / ", op.linear_factor),
                           op.freq_factors.empty() ? "" : absl::StrCat(" / ", op.freq_factors));
    return absl::StrCat("heads ", op.heads, " of ", op.head_dim, ", ", op.rope_dim, " columns ",
                        StyleText(op.style), ", ", angles);
  }
  std::string operator()(const KvStoreOp& op) const {
    return absl::StrCat("kv heads ", op.kv_heads, " of ", op.head_dim);
  }
  std::string operator()(const AttentionOp& op) const {
    return absl::StrCat("kv head of ", absl::StrJoin(op.kv_head_of, ","), ", scale ", op.scale);
  }
  std::string operator()(const SwiGluOp&) const { return ""; }
  std::string operator()(const AllGatherOp& op) const {
    return absl::StrCat("parts ", absl::StrJoin(op.parts_of, "+"));
  }
  std::string operator()(const JoinAddOp& op) const {
    const std::string norm =
        op.norm_weight.empty()
            ? ""
            : absl::StrCat("norm ", VectorText(op.norm_weight, constants_), ", eps ", op.eps);
    if (op.steps.empty()) {
      return norm;
    }
    return absl::StrCat("join ", StepsText(op.steps), norm.empty() ? "" : ", ", norm);
  }
  std::string operator()(const GatherRowsOp&) const { return ""; }
  std::string operator()(const SendOp&) const { return ""; }
  std::string operator()(const ReceiveOp&) const { return ""; }

 private:
  const std::vector<Constant>& constants_;
};

std::string RefText(absl::string_view name, const RowsRef& ref) {
  if (!ref.present()) {
    return "";
  }
  return absl::StrCat(" ", name, "=", ref.offset, "[", ref.width,
                      ref.stride == ref.width ? "" : absl::StrCat("/", ref.stride),
                      ref.first_part == 0 ? "" : absl::StrCat(" part ", ref.first_part), "]");
}

std::string RefText(absl::string_view name, const QuantizedRef& ref) {
  return ref.present() ? absl::StrCat(" ", name, "=", ref.q, "[", ref.width, " q8]") : "";
}

class StepDescriber {
 public:
  explicit StepDescriber(const Program& program) : program_(program) {}

  std::string operator()(const EmbedStep& step) const {
    return absl::StrCat(step.table, RefText("out", step.out));
  }
  std::string operator()(const RmsNormStep& step) const {
    return absl::StrCat(Const(step.weight), RefText("x", step.x), RefText("out", step.out),
                        RefText("quantized", step.quantized));
  }
  std::string operator()(const QuantizeStep& step) const {
    return absl::StrCat(RefText("x", step.x), RefText("out", step.out));
  }
  std::string operator()(const MatMulStep& step) const {
    std::vector<WeightUse> weights;
    for (const int32_t index : step.segments) {
      weights.push_back(program_.matrices[index]);
    }
    return absl::StrCat(WeightsText(weights),
                        step.bias == kNoConstant ? "" : absl::StrCat("; bias ", Const(step.bias)),
                        SplitText(step.split), ";", RefText("x", step.x), RefText("xq", step.xq),
                        RefText("out", step.out));
  }
  std::string operator()(const RopeStep& step) const {
    return absl::StrCat("heads ", step.heads, ", ", Const(step.table), RefText("x", step.x));
  }
  std::string operator()(const KvStoreStep& step) const {
    return absl::StrCat(RefText("k", step.k), RefText("v", step.v));
  }
  std::string operator()(const AttentionStep& step) const {
    return absl::StrCat("heads ", step.kv_head_of.size(), RefText("q", step.q),
                        RefText("out", step.out));
  }
  std::string operator()(const SwiGluStep& step) const {
    return absl::StrCat(RefText("gate_up", step.gate_up), RefText("out", step.out),
                        RefText("quantized", step.quantized));
  }
  std::string operator()(const AllGatherStep& step) const {
    return absl::StrCat("parts of shards ", absl::StrJoin(step.parts_of, "+"),
                        RefText("parts", step.parts));
  }
  std::string operator()(const JoinAddStep& step) const {
    return absl::StrCat(
        "parts ", step.num_parts, " joined ", StepsText(step.steps),
        step.norm_weight == kNoConstant ? "" : absl::StrCat(" norm ", Const(step.norm_weight)),
        RefText("parts", step.parts), RefText("residual", step.residual), RefText("out", step.out),
        RefText("normed", step.normed), RefText("quantized", step.quantized));
  }
  std::string operator()(const GatherRowsStep& step) const {
    return absl::StrCat(RefText("x", step.x), RefText("out", step.out));
  }
  std::string operator()(const SendStep& step) const { return RefText("x", step.x); }
  std::string operator()(const ReceiveStep& step) const { return RefText("out", step.out); }

 private:
  std::string Const(ConstantId id) const { return ConstantText(id, program_.constants); }

  const Program& program_;
};

}  // namespace

std::string ValueText(const Value& value) {
  const char* rows = value.rows == RowSet::kTokens ? "T" : "R";
  switch (value.form) {
    case Form::kFloat:
      return absl::StrCat("f32[", rows, ",", value.width, "]");
    case Form::kQuantized:
      return absl::StrCat("q8[", rows, ",", value.width, "]");
    case Form::kPartials:
      return absl::StrCat("f32[", value.parts, " parts,", rows, ",", value.width, "]");
    case Form::kKv:
      return "kv";
  }
  return "?";
}

std::string OpDetails(const Op& op, const std::vector<Constant>& constants) {
  return std::visit(OpDescriber(constants), op);
}

std::string StepDetails(const Step& step, const Program& program) {
  std::string text = std::visit(StepDescriber(program), step);
  return text.empty() || text[0] != ' ' ? text : text.substr(1);
}

}  // namespace shoal::graph
