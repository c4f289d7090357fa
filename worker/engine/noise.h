#pragma once

#include <cstdint>

namespace shoal::worker {

// The noise of the Gumbel-max draw (Gumbel, 1954; Maddison et al., A* Sampling, 2014): argmax over
// v of logit[v] + T * Gumbel(v) is distributed as softmax(logit / T). It is a pure function of
// (seed, choice, position, token id), so neither batch, shards nor restarts move it.
class GumbelNoise {
 public:
  GumbelNoise(uint64_t seed, uint32_t choice, uint64_t position);

  // 32 uniform bits of a token.
  uint32_t Bits(uint32_t token_id) const {
    uint64_t x = key_ + uint64_t{token_id} * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return static_cast<uint32_t>(x >> 32);
  }

  // -log(-log(u)), u = (bits + 0.5) / 2^32.
  static double FromBits(uint32_t bits);

  // An upper bound of FromBits(bits) that costs no logarithm:
  // -log(-log u) <= -log(1 - u) <= (leading zeros of 1 - u as a 32-bit fraction + 1) * ln 2.
  static double UpperBound(uint32_t bits) {
    const uint32_t rest = ~bits;  // 1 - u >= rest / 2^32, and more than half a unit when rest is 0
    const int zeros = rest == 0 ? 32 : __builtin_clz(rest);
    return (zeros + 1) * 0.69314718055994540;
  }

 private:
  uint64_t key_;
};

}  // namespace shoal::worker
