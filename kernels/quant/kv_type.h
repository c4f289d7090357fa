#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/ops.h"

namespace shoal::kernels {

// "f32", "f16", "bf16", "int8".
absl::string_view KvTypeName(KvType type);

// INVALID_ARGUMENT with the four names for any other.
absl::StatusOr<KvType> ParseKvType(absl::string_view name);

// Bytes of one page of one layer; see KvPages for what lies in it.
int64_t KvPageBytes(KvType type, int64_t kv_heads, int64_t head_dim);

}  // namespace shoal::kernels
