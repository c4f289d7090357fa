#include "kernels/quant/kv_type.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace shoal::kernels {
namespace {

constexpr KvType kTypes[] = {KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kF32};

int64_t ElementBytes(KvType type) {
  switch (type) {
    case KvType::kF32:
      return 4;
    case KvType::kF16:
    case KvType::kBf16:
      return 2;
    case KvType::kInt8:
      break;
  }
  return 1;
}

}  // namespace

absl::string_view KvTypeName(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kF16:
      return "f16";
    case KvType::kBf16:
      return "bf16";
    case KvType::kInt8:
      break;
  }
  return "int8";
}

absl::StatusOr<KvType> ParseKvType(absl::string_view name) {
  for (const KvType type : kTypes) {
    if (name == KvTypeName(type)) {
      return type;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("KV cache dtype \"", name, "\" is not served; use f16, bf16, int8 or f32"));
}

int64_t KvPageBytes(KvType type, int64_t kv_heads, int64_t head_dim) {
  const int64_t scales = type == KvType::kInt8 ? 2 * kPageTokens * int64_t{sizeof(float)} : 0;
  return kv_heads * (2 * kPageTokens * head_dim * ElementBytes(type) + scales);
}

}  // namespace shoal::kernels
