#include "router/control/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace shoal::router {
namespace {

// The prior: how alike the costs per token of neighbouring knots are, and what an attended pair and
// an output may cost, in tokens.
constexpr double kLikeness = 0.98;
constexpr double kAttendedCost = 1e-3;
constexpr double kOutputCost = 1;
// Of a step's duration: what no model explains, and how far the truth moves from step to step.
constexpr double kNoise = 0.05;
constexpr double kDrift = 0.01;
constexpr double kSmallestNoise = 1e-4;  // ms
// A step counts for at most this many times its prediction, once there are predictions.
constexpr double kMostSurprise = 3;
constexpr uint64_t kFirstObservations = 8;

double KnotAt(int knot) { return static_cast<double>(uint64_t{1} << knot); }

}  // namespace

void CostModel::SetPrior(const StepWork& first, double measured_ms) {
  const double any = std::max(measured_ms, kSmallestNoise);
  const double token = any / std::max(first.num_tokens, 1u);
  for (int i = 0; i < kKnots; ++i) {
    for (int j = 0; j < kKnots; ++j) {
      const double likeness = std::pow(kLikeness, std::abs(i - j));
      covariance_[i][j] = any * any + token * token * KnotAt(i) * KnotAt(j) * likeness;
    }
  }
  covariance_[kKnots][kKnots] = std::pow(token * kAttendedCost, 2);
  covariance_[kKnots + 1][kKnots + 1] = std::pow(token * kOutputCost, 2);
}

CostModel::Vector CostModel::Features(const StepWork& work) {
  Vector features{};
  const auto tokens = static_cast<double>(std::max(work.num_tokens, 1u));
  const int knot =
      std::min(static_cast<int>(std::bit_width(std::max(work.num_tokens, 1u))) - 1, kKnots - 2);
  const double share = (tokens - KnotAt(knot)) / KnotAt(knot);  // of the way to the next knot
  features[knot] = 1 - share;
  features[knot + 1] = share;
  features[kKnots] = static_cast<double>(work.num_attended);
  features[kKnots + 1] = work.num_outputs;
  return features;
}

void CostModel::Observe(const StepWork& work, absl::Duration duration) {
  if (num_observations_ == 0) SetPrior(work, absl::ToDoubleMilliseconds(duration));
  const Vector features = Features(work);
  Vector gain{};  // covariance times features, then the filter's gain
  double expected = 0;
  double variance = 0;
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) gain[i] += covariance_[i][j] * features[j];
    expected += weights_[i] * features[i];
  }
  for (int i = 0; i < kSize; ++i) variance += features[i] * gain[i];
  double measured = absl::ToDoubleMilliseconds(duration);
  if (num_observations_++ >= kFirstObservations && expected > 0) {
    measured = std::min(measured, kMostSurprise * expected + 1);
  }
  const double noise = kNoise * std::max(measured, expected) + kSmallestNoise;
  variance += noise * noise;
  for (int i = 0; i < kSize; ++i) weights_[i] += gain[i] / variance * (measured - expected);
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) covariance_[i][j] -= gain[i] * gain[j] / variance;
  }
  // What this step showed may be otherwise at the next one.
  const double drift = kDrift * measured;
  for (int i = 0; i < kKnots; ++i) covariance_[i][i] += drift * drift * features[i] * features[i];
}

absl::Duration CostModel::Predict(const StepWork& work) const {
  if (num_observations_ == 0) return absl::ZeroDuration();
  const Vector features = Features(work);
  double expected = 0;
  for (int i = 0; i < kSize; ++i) expected += weights_[i] * features[i];
  return absl::Milliseconds(std::max(expected, 0.0));
}

uint32_t CostModel::TokensWithin(absl::Duration target, const StepWork& work, uint64_t position,
                                 uint32_t max_tokens) const {
  const auto fits = [&](uint32_t num_tokens) {
    StepWork together = work;
    together.Add(position, num_tokens);
    return Predict(together) <= target;
  };
  uint32_t most = 0;
  for (uint32_t step = std::bit_floor(std::max(max_tokens, 1u)); step > 0; step /= 2) {
    if (most + step <= max_tokens && fits(most + step)) most += step;
  }
  return most;
}

}  // namespace shoal::router
