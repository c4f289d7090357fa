#include "worker/engine/distribution.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "worker/engine/exact_math.h"

namespace shoal::worker {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMinusInfinity = -kInfinity;
constexpr size_t kTopBlock = 64;
constexpr float kBannedLogprob = -1e30f;  // JSON and sums have no use for -inf

bool IsBefore(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The largest of a block, in lanes that compilers make vectors of. `*finite` becomes false if one
// is NaN or +inf.
float MaxOf(absl::Span<const float> block, bool* finite) {
  constexpr size_t kLanes = 16;
  float max[kLanes];
  std::fill(max, max + kLanes, kMinusInfinity);
  int is_finite[kLanes];
  std::fill(is_finite, is_finite + kLanes, 1);
  size_t i = 0;
  for (; i + kLanes <= block.size(); i += kLanes) {
    const float* x = block.data() + i;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      max[lane] = x[lane] > max[lane] ? x[lane] : max[lane];
      is_finite[lane] &= x[lane] < kInfinity ? 1 : 0;
    }
  }
  for (; i < block.size(); ++i) {
    max[0] = block[i] > max[0] ? block[i] : max[0];
    is_finite[0] &= block[i] < kInfinity ? 1 : 0;
  }
  for (size_t lane = 0; lane < kLanes; ++lane) *finite = *finite && is_finite[lane] != 0;
  return *std::max_element(max, max + kLanes);
}

// FindBest without noise: only a block with a new maximum is searched for its place.
Best FindLargest(absl::Span<const float> logits, uint32_t begin) {
  constexpr size_t kBlock = 512;
  Best best{.score = kMinusInfinity, .id = begin, .finite = true};
  for (size_t first = 0; first < logits.size() && best.finite; first += kBlock) {
    const absl::Span<const float> block = logits.subspan(first, kBlock);
    const float max = MaxOf(block, &best.finite);
    if (!(max > best.score)) continue;
    best.score = max;
    best.id = begin + first + (std::find(block.begin(), block.end(), max) - block.begin());
  }
  return best;
}

}  // namespace

Best FindBest(absl::Span<const float> logits, uint32_t begin, float temperature,
              const GumbelNoise* noise) {
  if (noise == nullptr) return FindLargest(logits, begin);
  Best best{.score = kMinusInfinity, .id = begin, .finite = true};
  const double t = temperature;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double logit = logits[i];
    if (!(logit < kInfinity)) {  // NaN too
      best.finite = false;
      return best;
    }
    const uint32_t bits = noise->Bits(begin + i);
    if (logit + t * GumbelNoise::UpperBound(bits) < best.score) continue;
    const double score = logit + t * GumbelNoise::FromBits(bits);
    if (score > best.score) best.score = score, best.id = begin + i;
  }
  return best;
}

Best Better(const Best& a, const Best& b) {
  Best best = b.score > a.score ? b : a;
  best.finite = a.finite && b.finite;
  return best;
}

Distribution::Distribution(uint32_t vocab_size) {
  candidates_.reserve(vocab_size);
  block_max_.reserve(vocab_size / kTopBlock + 1);
  sorted_max_.reserve(vocab_size / kTopBlock + 1);
}

// Each of the `count` blocks with the largest maxima has a logit of at least the least of those.
float Distribution::FloorOfTop(absl::Span<const float> logits, size_t count) {
  block_max_.clear();
  bool finite = true;
  for (size_t first = 0; first < logits.size(); first += kTopBlock) {
    block_max_.push_back(MaxOf(logits.subspan(first, kTopBlock), &finite));
  }
  if (count > block_max_.size()) return kMinusInfinity;
  sorted_max_.assign(block_max_.begin(), block_max_.end());
  const auto floor = sorted_max_.begin() + (count - 1);
  std::nth_element(sorted_max_.begin(), floor, sorted_max_.end(), std::greater<float>());
  return *floor;
}

absl::Span<const Candidate> Distribution::Top(absl::Span<const float> logits, uint32_t count) {
  const size_t n = std::min<size_t>(count, logits.size());
  candidates_.clear();
  if (n == 0) return {};
  const float floor = FloorOfTop(logits, n);
  for (size_t block = 0; block < block_max_.size(); ++block) {
    if (block_max_[block] < floor) continue;
    const size_t end = std::min(logits.size(), (block + 1) * kTopBlock);
    for (size_t id = block * kTopBlock; id < end; ++id) {
      if (logits[id] >= floor) candidates_.push_back({logits[id], static_cast<uint32_t>(id)});
    }
  }
  if (n < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + n, candidates_.end(), IsBefore);
  }
  std::sort(candidates_.begin(), candidates_.begin() + n, IsBefore);
  return absl::MakeConstSpan(candidates_).first(n);
}

double Distribution::SumExp(absl::Span<const float> logits, double max,
                            double inverse_temperature) {
  double total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kVocabChunk) {
    const size_t end = std::min(logits.size(), begin + kVocabChunk);
    double sum = 0;
    for (size_t i = begin; i < end; ++i) {
      const double x = (static_cast<double>(logits[i]) - max) * inverse_temperature;
      if (x > -60) sum += ExactExp(x);  // below e^-60 a term cannot move a sum that is at least 1
    }
    total += sum;
  }
  return total;
}

uint32_t Distribution::NucleusSize(absl::Span<const float> logits, uint32_t kept,
                                   const base::SamplingParams& params) {
  const double inverse_temperature = 1.0 / params.temperature;
  const double max = FindLargest(logits, 0).score;
  const auto weight = [&](const Candidate& c) {
    return ExactExp((static_cast<double>(c.logit) - max) * inverse_temperature);
  };
  double total = 0;
  if (kept == logits.size()) {
    total = SumExp(logits, max, inverse_temperature);
  } else {
    for (const Candidate& c : Top(logits, kept)) total += weight(c);
  }
  const double wanted = static_cast<double>(params.top_p) * total;
  // The nucleus is nearly always small: look among few candidates first.
  for (uint32_t count = std::min<uint32_t>(kept, 256);; count = std::min(kept, count * 8)) {
    double sum = 0;
    uint32_t size = 0;
    for (const Candidate& c : Top(logits, count)) {
      sum += weight(c);
      ++size;
      if (sum >= wanted) return size;
    }
    if (count == kept) return kept;
  }
}

Best Distribution::Draw(absl::Span<const float> logits, const base::SamplingParams& params,
                        const GumbelNoise& noise) {
  Best best = FindBest(logits, 0, 0, nullptr);
  best.finite = best.finite && best.score > kMinusInfinity;
  if (params.temperature == 0 || !best.finite) return best;

  const uint32_t vocab = static_cast<uint32_t>(logits.size());
  uint32_t kept = params.top_k > 0 ? std::min<uint32_t>(params.top_k, vocab) : vocab;
  if (params.top_p < 1) kept = NucleusSize(logits, kept, params);
  float floor = kMinusInfinity;
  if (params.min_p > 0) {
    floor = static_cast<float>(best.score + params.temperature * ExactLog(params.min_p));
  }
  Best drawn{.score = -std::numeric_limits<double>::infinity(), .id = best.id, .finite = true};
  const auto consider = [&](const Candidate& c) {
    if (c.logit < floor || c.logit == kMinusInfinity) return;
    const double score = static_cast<double>(c.logit) + static_cast<double>(params.temperature) *
                                                            GumbelNoise::FromBits(noise.Bits(c.id));
    if (score > drawn.score || (score == drawn.score && c.id < drawn.id)) {
      drawn.score = score;
      drawn.id = c.id;
    }
  };
  if (kept == vocab) {
    if (params.min_p <= 0) return FindBest(logits, 0, params.temperature, &noise);
    for (uint32_t id = 0; id < vocab; ++id) {
      if (logits[id] >= floor) consider({logits[id], id});
    }
  } else {
    for (const Candidate& c : Top(logits, kept)) consider(c);
  }
  return drawn;
}

base::PositionLogprobs Distribution::Logprobs(absl::Span<const float> logits, uint32_t chosen,
                                              int num_top) {
  const float max = *std::max_element(logits.begin(), logits.end());
  const double log_sum = ExactLog(SumExp(logits, max, 1.0));
  const auto logprob = [&](float logit) {
    return logit == kMinusInfinity ? kBannedLogprob
                                   : static_cast<float>(static_cast<double>(logit) - max - log_sum);
  };
  base::PositionLogprobs result;
  result.chosen = {chosen, logprob(logits[chosen])};
  if (num_top > 0) {
    for (const Candidate& c : Top(logits, num_top)) result.top.push_back({c.id, logprob(c.logit)});
  }
  return result;
}

}  // namespace shoal::worker
