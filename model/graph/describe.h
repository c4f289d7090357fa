#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/graph/passes.h"

namespace shoal::graph {

// How a model runs on one rank, for `shoalctl graph`. `after` is "built" (before any pass),
// "sharded" (after ShardTensorParallel), "split" (after SplitPipeline), "fused" (after all passes)
// or "program"; `format` is "text" or "dot". Reads the file's header and small tensors only.
// Errors: those of opening the model; INVALID_ARGUMENT for an unknown stage or format, a rank out
// of range, or a model that cannot be cut so.
absl::StatusOr<std::string> DescribeGraph(absl::string_view path, const Placement& placement,
                                          absl::string_view after, absl::string_view format);

}  // namespace shoal::graph
