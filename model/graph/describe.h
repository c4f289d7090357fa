#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shoal::graph {

// How a model runs on one shard, for `shoalctl graph`. `stage` is "built" (before any pass),
// "sharded" (after ShardTensorParallel), "fused" (after all passes) or "program"; `format` is
// "text" or "dot". Reads the file's header and small tensors only.
// Errors: those of opening the model; INVALID_ARGUMENT for an unknown stage or format, a shard out
// of range, or a model that cannot be cut in `tp` parts.
absl::StatusOr<std::string> DescribeGraph(absl::string_view path, int tp, int shard,
                                          absl::string_view stage, absl::string_view format);

}  // namespace shoal::graph
