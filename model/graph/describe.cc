#include "model/graph/describe.h"

#include <algorithm>
#include <memory>

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

absl::Status CheckArguments(int tp, int shard, absl::string_view stage, absl::string_view format) {
  if (stage != "built" && stage != "sharded" && stage != "fused" && stage != "program") {
    return absl::InvalidArgumentError(
        absl::StrCat("stage '", stage, "' is unknown; expected built, sharded, fused or program"));
  }
  if (format != "text" && format != "dot") {
    return absl::InvalidArgumentError(
        absl::StrCat("format '", format, "' is unknown; expected text or dot"));
  }
  if (tp < 1 || shard < 0 || shard >= tp) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", shard, " is not in 0..", tp - 1, " for tensor parallel size ", tp));
  }
  return absl::OkStatus();
}

template <typename T>
std::string Dump(const T& what, absl::string_view format) {
  return format == "dot" ? ToDot(what) : ToText(what);
}

}  // namespace

absl::StatusOr<std::string> DescribeGraph(absl::string_view path, int tp, int shard,
                                          absl::string_view stage, absl::string_view format) {
  SHOAL_RETURN_IF_ERROR(CheckArguments(tp, shard, stage, format));
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<model::GgufFile> file,
                         model::GgufFile::Open(path, model::FileBytes::Mode::kMap));
  SHOAL_ASSIGN_OR_RETURN(const model::ModelConfig config, model::ParseConfig(*file));
  SHOAL_ASSIGN_OR_RETURN(const model::Weights weights, model::Weights::Create(*file, config));
  Graph graph = BuildGraph(config, weights);
  if (stage == "built") {
    return Dump(graph, format);
  }
  if (stage == "sharded") {
    SHOAL_RETURN_IF_ERROR(ShardTensorParallel(config, tp, shard, &graph).status());
    return Dump(graph, format);
  }
  const ProgramLimits limits{.max_seq_len = std::min(config.context_length, kMaxShownSeqLen)};
  SHOAL_RETURN_IF_ERROR(
      RunPasses(config, weights, tp, shard, limits.max_seq_len, PassOptions{}, &graph));
  return stage == "fused" ? Dump(graph, format) : Dump(Lower(graph, limits), format);
}

}  // namespace shoal::graph
