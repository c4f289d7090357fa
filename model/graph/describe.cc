#include "model/graph/describe.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/config.h"
#include "model/formats/gguf.h"
#include "model/graph/builder.h"
#include "model/graph/dump.h"
#include "model/graph/lower.h"
#include "model/graph/passes.h"
#include "model/weights.h"

namespace shoal::graph {
namespace {

// What a file may make this compute of a rope table, whose shape alone is shown.
constexpr int64_t kMaxShownSeqLen = 1 << 20;

absl::Status CheckArguments(const Placement& placement, absl::string_view after,
                            absl::string_view format) {
  if (after != "built" && after != "sharded" && after != "split" && after != "fused" &&
      after != "program") {
    return absl::InvalidArgumentError(absl::StrCat(
        "stage '", after, "' is unknown; expected built, sharded, split, fused or program"));
  }
  if (format != "text" && format != "dot") {
    return absl::InvalidArgumentError(
        absl::StrCat("format '", format, "' is unknown; expected text or dot"));
  }
  if (placement.tp < 1 || placement.shard < 0 || placement.shard >= placement.tp) {
    return absl::InvalidArgumentError(absl::StrCat("shard ", placement.shard, " is not in 0..",
                                                   placement.tp - 1, " for tensor parallel size ",
                                                   placement.tp));
  }
  if (placement.pp < 1 || placement.stage < 0 || placement.stage >= placement.pp) {
    return absl::InvalidArgumentError(absl::StrCat("pipeline stage ", placement.stage,
                                                   " is not in 0..", placement.pp - 1,
                                                   " for pipeline parallel size ", placement.pp));
  }
  return absl::OkStatus();
}

template <typename T>
std::string Dump(const T& what, absl::string_view format) {
  return format == "dot" ? ToDot(what) : ToText(what);
}

}  // namespace

absl::StatusOr<std::string> DescribeGraph(absl::string_view path, const Placement& placement,
                                          absl::string_view after, absl::string_view format) {
  SHOAL_RETURN_IF_ERROR(CheckArguments(placement, after, format));
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<model::GgufFile> file,
                         model::GgufFile::Open(path, model::FileBytes::Mode::kMap));
  SHOAL_ASSIGN_OR_RETURN(const model::ModelConfig config, model::ParseConfig(*file));
  SHOAL_ASSIGN_OR_RETURN(const model::Weights weights, model::Weights::Create(*file, config));
  Graph graph = BuildGraph(config, weights);
  if (after == "built") {
    return Dump(graph, format);
  }
  if (after == "sharded" || after == "split") {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<parallel::Range> layers,
                           StageLayers(graph, placement.pp, placement.stage_layers));
    SHOAL_RETURN_IF_ERROR(
        ShardTensorParallel(config, placement.tp, placement.shard, &graph).status());
    if (after == "split") SplitPipeline(layers, placement.stage, &graph);
    return Dump(graph, format);
  }
  const ProgramLimits limits{.max_seq_len = std::min(config.context_length, kMaxShownSeqLen)};
  SHOAL_RETURN_IF_ERROR(
      RunPasses(config, weights, placement, limits.max_seq_len, PassOptions{}, &graph));
  return after == "fused" ? Dump(graph, format) : Dump(Lower(graph, limits), format);
}

}  // namespace shoal::graph
