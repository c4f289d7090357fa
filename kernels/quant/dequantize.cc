#include "kernels/quant/dequantize.h"

#include <glog/logging.h>

#include <cstring>

#include "kernels/quant/float16.h"

namespace shoal::kernels {
namespace {

void Dequantize(const BlockQ8_0& block, float* y) {
  const float d = F16ToF32(block.d);
  for (int k = 0; k < 32; ++k) {
    y[k] = d * static_cast<float>(block.q[k]);
  }
}

void Dequantize(const BlockQ4_0& block, float* y) {
  const float d = F16ToF32(block.d);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * static_cast<float>((block.qs[j] & 15) - 8);
    y[j + 16] = d * static_cast<float>((block.qs[j] >> 4) - 8);
  }
}

void Dequantize(const BlockQ4_1& block, float* y) {
  const float d = F16ToF32(block.d);
  const float m = F16ToF32(block.m);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * static_cast<float>(block.qs[j] & 15) + m;
    y[j + 16] = d * static_cast<float>(block.qs[j] >> 4) + m;
  }
}

// Bit k of a 32-bit little-endian mask, moved to bit 4.
int HighBit(const uint8_t qh[4], int k) { return ((qh[k / 8] >> (k % 8)) & 1) << 4; }

void Dequantize(const BlockQ5_0& block, float* y) {
  const float d = F16ToF32(block.d);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * static_cast<float>(((block.qs[j] & 15) | HighBit(block.qh, j)) - 16);
    y[j + 16] = d * static_cast<float>(((block.qs[j] >> 4) | HighBit(block.qh, j + 16)) - 16);
  }
}

void Dequantize(const BlockQ5_1& block, float* y) {
  const float d = F16ToF32(block.d);
  const float m = F16ToF32(block.m);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * static_cast<float>((block.qs[j] & 15) | HighBit(block.qh, j)) + m;
    y[j + 16] = d * static_cast<float>((block.qs[j] >> 4) | HighBit(block.qh, j + 16)) + m;
  }
}

void Dequantize(const BlockQ4_K& block, float* y) {
  const float d = F16ToF32(block.d);
  const float dmin = F16ToF32(block.dmin);
  const Scales6 scales = UnpackScales6(block.scales);
  for (int s = 0; s < 8; ++s) {
    const float scale = d * static_cast<float>(scales.scale[s]);
    const float min = dmin * static_cast<float>(scales.min[s]);
    for (int l = 0; l < 32; ++l) {
      const int q = (block.qs[32 * (s / 2) + l] >> (4 * (s % 2))) & 15;
      *y++ = scale * static_cast<float>(q) - min;
    }
  }
}

void Dequantize(const BlockQ5_K& block, float* y) {
  const float d = F16ToF32(block.d);
  const float dmin = F16ToF32(block.dmin);
  const Scales6 scales = UnpackScales6(block.scales);
  for (int s = 0; s < 8; ++s) {
    const float scale = d * static_cast<float>(scales.scale[s]);
    const float min = dmin * static_cast<float>(scales.min[s]);
    for (int l = 0; l < 32; ++l) {
      const int low = (block.qs[32 * (s / 2) + l] >> (4 * (s % 2))) & 15;
      const int high = ((block.qh[l] >> s) & 1) << 4;
      *y++ = scale * static_cast<float>(low | high) - min;
    }
  }
}

void Dequantize(const BlockQ6_K& block, float* y) {
  const float d = F16ToF32(block.d);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* ql = block.ql + 64 * half;
    const uint8_t* qh = block.qh + 32 * half;
    const int8_t* scales = block.scales + 8 * half;
    for (int l = 0; l < 32; ++l) {
      const int q[4] = {(ql[l] & 15) | (qh[l] & 3) << 4, (ql[l + 32] & 15) | (qh[l] >> 2 & 3) << 4,
                        (ql[l] >> 4) | (qh[l] >> 4 & 3) << 4,
                        (ql[l + 32] >> 4) | (qh[l] >> 6) << 4};
      for (int v = 0; v < 4; ++v) {
        const float scale = d * static_cast<float>(scales[2 * v + l / 16]);
        y[128 * half + 32 * v + l] = scale * static_cast<float>(q[v] - 32);
      }
    }
  }
}

template <typename Block>
void DequantizeBlocks(const void* src, float* dst, int64_t n, int values_per_block) {
  const Block* blocks = static_cast<const Block*>(src);
  for (int64_t i = 0; i < n / values_per_block; ++i) {
    Dequantize(blocks[i], dst + i * values_per_block);
  }
}

}  // namespace

void DequantizeRow(DType type, const void* src, float* dst, int64_t n) {
  CHECK_EQ(n % TraitsOf(type).values_per_block, 0) << TraitsOf(type).name;
  switch (type) {
    case DType::kF32:
      std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::kF16:
      for (int64_t i = 0; i < n; ++i) {
        dst[i] = F16ToF32(static_cast<const uint16_t*>(src)[i]);
      }
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < n; ++i) {
        dst[i] = BF16ToF32(static_cast<const uint16_t*>(src)[i]);
      }
      return;
    case DType::kQ8_0:
      return DequantizeBlocks<BlockQ8_0>(src, dst, n, 32);
    case DType::kQ4_0:
      return DequantizeBlocks<BlockQ4_0>(src, dst, n, 32);
    case DType::kQ4_1:
      return DequantizeBlocks<BlockQ4_1>(src, dst, n, 32);
    case DType::kQ5_0:
      return DequantizeBlocks<BlockQ5_0>(src, dst, n, 32);
    case DType::kQ5_1:
      return DequantizeBlocks<BlockQ5_1>(src, dst, n, 32);
    case DType::kQ4_K:
      return DequantizeBlocks<BlockQ4_K>(src, dst, n, 256);
    case DType::kQ5_K:
      return DequantizeBlocks<BlockQ5_K>(src, dst, n, 256);
    case DType::kQ6_K:
      return DequantizeBlocks<BlockQ6_K>(src, dst, n, 256);
    default:
      LOG(FATAL) << TraitsOf(type).name << " is no weight type";
  }
}

}  // namespace shoal::kernels
