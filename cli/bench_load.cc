#include "cli/bench_load.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "glog/logging.h"

namespace shoal::cli {
namespace {

// std::mt19937_64 is the same everywhere; the distributions of <random> are not.
void AppendRandomIds(const BenchLoad& load, uint64_t stream, uint32_t count,
                     std::vector<uint32_t>* ids) {
  std::seed_seq seeds{static_cast<uint32_t>(load.seed), static_cast<uint32_t>(load.seed >> 32),
                      static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  std::mt19937_64 random(seeds);
  for (uint32_t i = 0; i < count;) {
    const uint32_t id = static_cast<uint32_t>(random() % load.vocab_size);
    const auto& ends = load.end_token_ids;
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) continue;
    ids->push_back(id);
    ++i;
  }
}

}  // namespace

std::vector<uint32_t> MakePrompt(const BenchLoad& load, uint32_t index) {
  CHECK_GT(load.vocab_size, load.end_token_ids.size());
  const uint32_t num_shared = std::min(load.shared_prefix_tokens, load.prompt_tokens);
  const uint32_t which = load.num_distinct == 0 ? index : index % load.num_distinct;
  std::vector<uint32_t> ids;
  ids.reserve(load.prompt_tokens);
  AppendRandomIds(load, 0, num_shared, &ids);
  AppendRandomIds(load, uint64_t{which} + 1, load.prompt_tokens - num_shared, &ids);
  return ids;
}

std::vector<absl::Duration> PoissonArrivals(uint32_t num_requests, double rate, uint64_t seed) {
  CHECK_GT(rate, 0.0);
  std::mt19937_64 random(seed);
  std::vector<absl::Duration> arrivals;
  double at = 0;
  for (uint32_t i = 0; i < num_requests; ++i) {
    arrivals.push_back(absl::Seconds(at));
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;  // [0, 1)
    at += -std::log1p(-uniform) / rate;
  }
  return arrivals;
}

}  // namespace shoal::cli
