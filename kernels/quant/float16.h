#pragma once

#include <bit>
#include <cstdint>

// Conversions between float and the two 16-bit formats of weights and KV. Floats are rounded to the
// nearest, ties to even. All functions equal what F16C does in hardware, bit for bit: subnormals
// are kept on both sides, and a NaN keeps its sign and upper payload and becomes quiet.
namespace shoal::kernels {

// IEEE binary16: sign 1, exponent 5, mantissa 10.
constexpr float F16ToF32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0x1f) {
    const uint32_t quiet = mantissa != 0 ? 0x400000 : 0;
    return std::bit_cast<float>(sign | 0x7f800000 | quiet | mantissa << 13);
  }
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

constexpr uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {  // NaN
    return static_cast<uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
  }
  if (magnitude >= 0x477ff000) {  // 65520 and above round to infinity
    return static_cast<uint16_t>(sign | 0x7c00);
  }
  if (magnitude >= 0x38800000) {  // normal in f16 (2^-14 and above)
    const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
  }
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102) {  // below 2^-25
    return sign;
  }
  const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
  const uint32_t shift = 126 - exponent;  // 14..24; the result counts units of 2^-24
  const uint32_t half = 1u << (shift - 1);
  const uint32_t rest = mantissa & ((1u << shift) - 1);
  uint32_t result = mantissa >> shift;
  if (rest > half || (rest == half && (result & 1) != 0)) {
    ++result;
  }
  return static_cast<uint16_t>(sign | result);
}

// bfloat16: the upper 16 bits of a float.
constexpr float BF16ToF32(uint16_t brain) {
  return std::bit_cast<float>(static_cast<uint32_t>(brain) << 16);
}

constexpr uint16_t F32ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    return static_cast<uint16_t>((bits >> 16) | 0x40);
  }
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace shoal::kernels
