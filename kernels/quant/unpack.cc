#include "kernels/quant/unpack.h"

#include <glog/logging.h>

#include "kernels/quant/float16.h"

namespace shoal::kernels {
namespace {

void SetScale(Unpacked32* out, int zero, float d, float m) {
  out->zero = zero;
  out->d = d;
  out->m = m;
  out->scale[0] = 1;
  out->scale[1] = 1;
  out->min = 1;
}

void UnpackNibbles(const uint8_t qs[16], uint8_t q[32]) {
  for (int j = 0; j < 16; ++j) {
    q[j] = qs[j] & 15;
    q[j + 16] = qs[j] >> 4;
  }
}

void AddHighBits(const uint8_t qh[4], uint8_t q[32]) {
  for (int k = 0; k < 32; ++k) {
    q[k] = static_cast<uint8_t>(q[k] | ((qh[k / 8] >> (k % 8)) & 1) << 4);
  }
}

void Unpack(const BlockQ8_0& block, Unpacked32* out) {
  SetScale(out, 128, F16ToF32(block.d), 0.0f);
  for (int k = 0; k < 32; ++k) {
    out->q[k] = static_cast<uint8_t>(block.q[k] + 128);
  }
}

void Unpack(const BlockQ4_0& block, Unpacked32* out) {
  SetScale(out, 8, F16ToF32(block.d), 0.0f);
  UnpackNibbles(block.qs, out->q);
}

void Unpack(const BlockQ4_1& block, Unpacked32* out) {
  SetScale(out, 0, F16ToF32(block.d), F16ToF32(block.m));
  UnpackNibbles(block.qs, out->q);
}

void Unpack(const BlockQ5_0& block, Unpacked32* out) {
  SetScale(out, 16, F16ToF32(block.d), 0.0f);
  UnpackNibbles(block.qs, out->q);
  AddHighBits(block.qh, out->q);
}

void Unpack(const BlockQ5_1& block, Unpacked32* out) {
  SetScale(out, 0, F16ToF32(block.d), F16ToF32(block.m));
  UnpackNibbles(block.qs, out->q);
  AddHighBits(block.qh, out->q);
}

// Scales and low four bits, which Q4_K and Q5_K share; out[8].
template <typename Block>
void UnpackSubBlocks(const Block& block, Unpacked32* out) {
  const float d = F16ToF32(block.d);
  const float dmin = F16ToF32(block.dmin);
  const Scales6 scales = UnpackScales6(block.scales);
  for (int s = 0; s < 8; ++s) {
    SetScale(&out[s], 0, d, -dmin);
    out[s].scale[0] = static_cast<int8_t>(scales.scale[s]);
    out[s].scale[1] = out[s].scale[0];
    out[s].min = scales.min[s];
    for (int l = 0; l < 32; ++l) {
      out[s].q[l] = (block.qs[32 * (s / 2) + l] >> (4 * (s % 2))) & 15;
    }
  }
}

void Unpack(const BlockQ4_K& block, Unpacked32* out) { UnpackSubBlocks(block, out); }

void Unpack(const BlockQ5_K& block, Unpacked32* out) {
  UnpackSubBlocks(block, out);
  for (int s = 0; s < 8; ++s) {
    for (int l = 0; l < 32; ++l) {
      out[s].q[l] = static_cast<uint8_t>(out[s].q[l] | ((block.qh[l] >> s) & 1) << 4);
    }
  }
}

void Unpack(const BlockQ6_K& block, Unpacked32* out) {
  const float d = F16ToF32(block.d);
  for (int i = 0; i < 8; ++i) {
    const int half = i / 4;
    const int v = i % 4;
    SetScale(&out[i], 32, d, 0.0f);
    out[i].scale[0] = block.scales[2 * i];
    out[i].scale[1] = block.scales[2 * i + 1];
    for (int l = 0; l < 32; ++l) {
      const int low = (block.ql[64 * half + 32 * (v % 2) + l] >> (4 * (v / 2))) & 15;
      const int high = (block.qh[32 * half + l] >> (2 * v)) & 3;
      out[i].q[l] = static_cast<uint8_t>(low | high << 4);
    }
  }
}

template <typename Block>
void UnpackBlocks(const void* src, Unpacked32* dst, int64_t n, int values_per_block) {
  const Block* blocks = static_cast<const Block*>(src);
  for (int64_t i = 0; i < n / values_per_block; ++i) {
    Unpack(blocks[i], dst + i * (values_per_block / 32));
  }
}

}  // namespace

void UnpackRow(DType type, const void* src, Unpacked32* dst, int64_t n) {
  CHECK_EQ(n % TraitsOf(type).values_per_block, 0) << TraitsOf(type).name;
  switch (type) {
    case DType::kQ8_0:
      return UnpackBlocks<BlockQ8_0>(src, dst, n, 32);
    case DType::kQ4_0:
      return UnpackBlocks<BlockQ4_0>(src, dst, n, 32);
    case DType::kQ4_1:
      return UnpackBlocks<BlockQ4_1>(src, dst, n, 32);
    case DType::kQ5_0:
      return UnpackBlocks<BlockQ5_0>(src, dst, n, 32);
    case DType::kQ5_1:
      return UnpackBlocks<BlockQ5_1>(src, dst, n, 32);
    case DType::kQ4_K:
      return UnpackBlocks<BlockQ4_K>(src, dst, n, 256);
    case DType::kQ5_K:
      return UnpackBlocks<BlockQ5_K>(src, dst, n, 256);
    case DType::kQ6_K:
      return UnpackBlocks<BlockQ6_K>(src, dst, n, 256);
    default:
      LOG(FATAL) << TraitsOf(type).name << " is no block format";
  }
}

}  // namespace shoal::kernels
