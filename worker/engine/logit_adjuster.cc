#include "worker/engine/logit_adjuster.h"

#include <limits>

namespace shoal::worker {
namespace {

bool HasPenalties(const base::SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

}  // namespace

bool LogitAdjuster::IsNeeded(const base::SamplingParams& params, uint32_t num_generated) {
  return !params.logit_bias.empty() || HasPenalties(params) ||
         (num_generated < params.min_tokens && !params.end_ids.empty());
}

void LogitAdjuster::Apply(const base::SamplingParams& params, absl::Span<const uint32_t> log,
                          uint32_t num_prompt_tokens, uint32_t begin, absl::Span<float> row) {
  const uint32_t end = begin + static_cast<uint32_t>(row.size());
  for (const auto& [id, bias] : params.logit_bias) {
    if (id >= begin && id < end) row[id - begin] += bias;
  }
  if (HasPenalties(params)) Penalise(params, log, num_prompt_tokens, begin, row);
  if (log.size() - num_prompt_tokens < params.min_tokens) {
    for (uint32_t id : params.end_ids) {
      if (id >= begin && id < end) row[id - begin] = -std::numeric_limits<float>::infinity();
    }
  }
}

void LogitAdjuster::Penalise(const base::SamplingParams& params, absl::Span<const uint32_t> log,
                             uint32_t num_prompt_tokens, uint32_t begin, absl::Span<float> row) {
  const uint32_t end = begin + static_cast<uint32_t>(row.size());
  const auto is_here = [&](uint32_t id) { return id >= begin && id < end; };
  if (params.repetition_penalty != 1) {
    for (uint32_t id : log) {
      if (!is_here(id) || counts_[id] != 0) continue;
      counts_[id] = 1;
      float& logit = row[id - begin];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
    for (uint32_t id : log) counts_[id] = 0;
  }
  if (params.presence_penalty == 0 && params.frequency_penalty == 0) return;
  const absl::Span<const uint32_t> output = log.subspan(num_prompt_tokens);
  for (uint32_t id : output) ++counts_[id];
  for (uint32_t id : output) {
    if (is_here(id) && counts_[id] != 0) {
      row[id - begin] -=
          static_cast<float>(counts_[id]) * params.frequency_penalty + params.presence_penalty;
    }
    counts_[id] = 0;
  }
}

}  // namespace shoal::worker
