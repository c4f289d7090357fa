#include "kernels/quant/quantize.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/quant/float16.h"

namespace shoal::kernels {
namespace {

float InverseOrZero(float d) { return d != 0.0f ? 1.0f / d : 0.0f; }

// The value of the largest magnitude, with its sign; the first one among equals.
float SignedMaximum(const float* x) {
  float best = 0.0f;
  for (int k = 0; k < 32; ++k) {
    if (std::fabs(x[k]) > std::fabs(best)) {
      best = x[k];
    }
  }
  return best;
}

void Quantize(const float* x, BlockQ8_0* block) {
  const float d = std::fabs(SignedMaximum(x)) / 127.0f;
  const float inverse = InverseOrZero(d);
  block->d = F32ToF16(d);
  for (int k = 0; k < 32; ++k) {
    block->q[k] = static_cast<int8_t>(std::round(x[k] * inverse));
  }
}

// Levels 0..2*zero-1 around `zero`: the largest value gets level 0, so that d has the other sign.
float QuantizeAroundZero(const float* x, int zero, uint8_t* q) {
  const float d = SignedMaximum(x) / static_cast<float>(-zero);
  const float inverse = InverseOrZero(d);
  for (int k = 0; k < 32; ++k) {
    const float level = x[k] * inverse + (static_cast<float>(zero) + 0.5f);
    q[k] = static_cast<uint8_t>(std::min(2 * zero - 1, static_cast<int>(level)));
  }
  return d;
}

// Levels 0..max_level between the least and the greatest value.
void QuantizeRange(const float* x, int max_level, uint8_t* q, float* d, float* min) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  *min = *low;
  *d = (*high - *low) / static_cast<float>(max_level);
  const float inverse = InverseOrZero(*d);
  for (int k = 0; k < 32; ++k) {
    const float level = (x[k] - *min) * inverse + 0.5f;
    q[k] = static_cast<uint8_t>(std::min(max_level, static_cast<int>(level)));
  }
}

void PackNibbles(const uint8_t* q, uint8_t qs[16]) {
  for (int j = 0; j < 16; ++j) {
    qs[j] = static_cast<uint8_t>((q[j] & 15) | (q[j + 16] & 15) << 4);
  }
}

void PackHighBits(const uint8_t* q, uint8_t qh[4]) {
  std::memset(qh, 0, 4);
  for (int k = 0; k < 32; ++k) {
    qh[k / 8] = static_cast<uint8_t>(qh[k / 8] | (q[k] >> 4) << (k % 8));
  }
}

void Quantize(const float* x, BlockQ4_0* block) {
  uint8_t q[32];
  block->d = F32ToF16(QuantizeAroundZero(x, 8, q));
  PackNibbles(q, block->qs);
}

void Quantize(const float* x, BlockQ5_0* block) {
  uint8_t q[32];
  block->d = F32ToF16(QuantizeAroundZero(x, 16, q));
  PackNibbles(q, block->qs);
  PackHighBits(q, block->qh);
}

void Quantize(const float* x, BlockQ4_1* block) {
  uint8_t q[32];
  float d, min;
  QuantizeRange(x, 15, q, &d, &min);
  block->d = F32ToF16(d);
  block->m = F32ToF16(min);
  PackNibbles(q, block->qs);
}

void Quantize(const float* x, BlockQ5_1* block) {
  uint8_t q[32];
  float d, min;
  QuantizeRange(x, 31, q, &d, &min);
  block->d = F32ToF16(d);
  block->m = F32ToF16(min);
  PackNibbles(q, block->qs);
  PackHighBits(q, block->qh);
}

template <typename Block>
void QuantizeBlocks(const float* src, void* dst, int64_t n) {
  Block* blocks = static_cast<Block*>(dst);
  for (int64_t i = 0; i < n / 32; ++i) {
    Quantize(src + i * 32, &blocks[i]);
  }
}

}  // namespace

bool CanQuantize(DType type) { return IsWeightType(type) && TraitsOf(type).values_per_block <= 32; }

void QuantizeRow(DType type, const float* src, void* dst, int64_t n) {
  CHECK_EQ(n % TraitsOf(type).values_per_block, 0) << TraitsOf(type).name;
  switch (type) {
    case DType::kF32:
      std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::kF16:
      std::transform(src, src + n, static_cast<uint16_t*>(dst), F32ToF16);
      return;
    case DType::kBF16:
      std::transform(src, src + n, static_cast<uint16_t*>(dst), F32ToBF16);
      return;
    case DType::kQ8_0:
      return QuantizeBlocks<BlockQ8_0>(src, dst, n);
    case DType::kQ4_0:
      return QuantizeBlocks<BlockQ4_0>(src, dst, n);
    case DType::kQ4_1:
      return QuantizeBlocks<BlockQ4_1>(src, dst, n);
    case DType::kQ5_0:
      return QuantizeBlocks<BlockQ5_0>(src, dst, n);
    case DType::kQ5_1:
      return QuantizeBlocks<BlockQ5_1>(src, dst, n);
    default:
      LOG(FATAL) << "no quantiser for " << TraitsOf(type).name;
  }
}

}  // namespace shoal::kernels
