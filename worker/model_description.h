#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/formats/gguf.h"
#include "shoal/worker/v1/worker.pb.h"

namespace shoal::worker {

// What a router needs to know of a model file: configuration, tokenizer, chat template,
// fingerprint. Errors name the file's key: NOT_FOUND for one that is missing, INVALID_ARGUMENT for
// a wrong type.
absl::StatusOr<v1::ModelDescription> DescribeModel(const model::GgufFile& file);

}  // namespace shoal::worker
