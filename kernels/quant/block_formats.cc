#include "kernels/quant/block_formats.h"

#include <glog/logging.h>

namespace shoal::kernels {

Scales6 UnpackScales6(const uint8_t packed[12]) {
  Scales6 result;
  for (int j = 0; j < 4; ++j) {
    result.scale[j] = packed[j] & 63;
    result.min[j] = packed[j + 4] & 63;
    result.scale[j + 4] = static_cast<uint8_t>((packed[j + 8] & 15) | (packed[j] >> 6) << 4);
    result.min[j + 4] = static_cast<uint8_t>((packed[j + 8] >> 4) | (packed[j + 4] >> 6) << 4);
  }
  return result;
}

const DTypeTraits& TraitsOf(DType type) {
  static constexpr DTypeTraits kF32{"F32", 1, 4}, kF16{"F16", 1, 2}, kBF16{"BF16", 1, 2},
      kQ4_0{"Q4_0", 32, 18}, kQ4_1{"Q4_1", 32, 20}, kQ5_0{"Q5_0", 32, 22}, kQ5_1{"Q5_1", 32, 24},
      kQ8_0{"Q8_0", 32, 34}, kQ4_K{"Q4_K", 256, 144}, kQ5_K{"Q5_K", 256, 176},
      kQ6_K{"Q6_K", 256, 210}, kI8{"I8", 1, 1}, kI16{"I16", 1, 2}, kI32{"I32", 1, 4},
      kI64{"I64", 1, 8}, kF64{"F64", 1, 8};
  switch (type) {
    case DType::kF32:
      return kF32;
    case DType::kF16:
      return kF16;
    case DType::kQ4_0:
      return kQ4_0;
    case DType::kQ4_1:
      return kQ4_1;
    case DType::kQ5_0:
      return kQ5_0;
    case DType::kQ5_1:
      return kQ5_1;
    case DType::kQ8_0:
      return kQ8_0;
    case DType::kQ4_K:
      return kQ4_K;
    case DType::kQ5_K:
      return kQ5_K;
    case DType::kQ6_K:
      return kQ6_K;
    case DType::kI8:
      return kI8;
    case DType::kI16:
      return kI16;
    case DType::kI32:
      return kI32;
    case DType::kI64:
      return kI64;
    case DType::kF64:
      return kF64;
    case DType::kBF16:
      return kBF16;
  }
  LOG(FATAL) << "no DType: " << static_cast<uint32_t>(type);
}

std::optional<DType> DTypeFromGguf(uint32_t id) {
  switch (id) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 6:
    case 7:
    case 8:
    case 12:
    case 13:
    case 14:
    case 24:
    case 25:
    case 26:
    case 27:
    case 28:
    case 30:
      return static_cast<DType>(id);
    default:
      return std::nullopt;
  }
}

bool IsQuantized(DType type) { return TraitsOf(type).values_per_block > 1; }

bool IsWeightType(DType type) {
  return IsQuantized(type) || type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

int64_t RowBytes(DType type, int64_t cols) {
  const DTypeTraits& traits = TraitsOf(type);
  CHECK_GE(cols, 0);
  CHECK_EQ(cols % traits.values_per_block, 0)
      << "a row of " << cols << " values is no whole number of " << traits.name << " blocks";
  return cols / traits.values_per_block * traits.bytes_per_block;
}

}  // namespace shoal::kernels
