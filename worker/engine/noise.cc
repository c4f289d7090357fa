#include "worker/engine/noise.h"

#include "base/state_hash.h"
#include "worker/engine/exact_math.h"

namespace shoal::worker {

GumbelNoise::GumbelNoise(uint64_t seed, uint32_t choice, uint64_t position)
    : key_(base::CombineHash(base::CombineHash(base::MixBits(seed), choice), position)) {}

double GumbelNoise::FromBits(uint32_t bits) {
  const double u = (static_cast<double>(bits) + 0.5) * (1.0 / 4294967296.0);
  return -ExactLog(-ExactLog(u));
}

}  // namespace shoal::worker
