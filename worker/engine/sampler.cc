#include "worker/engine/sampler.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "worker/engine/noise.h"

namespace shoal::worker {
namespace {

constexpr size_t kGatherRows = 16;  // whole rows exchanged at once

GumbelNoise NoiseOf(const SampleRequest& request) {
  return GumbelNoise(request.params->seed, request.params->choice, request.log.size());
}

}  // namespace

Sampler::Sampler(std::vector<uint32_t> shard_begins, int shard, int max_rows)
    : shard_begins_(std::move(shard_begins)),
      shard_(shard),
      begin_(shard_begins_[shard]),
      vocab_size_(shard_begins_.back()),
      adjuster_(vocab_size_),
      distribution_(vocab_size_) {
  rows_.reserve(max_rows);
  bests_.reserve(static_cast<size_t>(max_rows) * (shard_begins_.size() - 1));
  adjusted_.reserve(vocab_size_);
  row_.reserve(shard_begins_.size() > 2 ? vocab_size_ : 0);
}

bool Sampler::NeedsWholeRow(const SampleRequest& request) {
  const base::SamplingParams& p = *request.params;
  if (request.score || p.top_logprobs >= 0) return true;
  return p.temperature != 0 && (p.top_k > 0 || p.top_p < 1 || p.min_p > 0);
}

absl::Status Sampler::Run(absl::Span<const SampleRequest> requests, parallel::Transport* transport,
                          std::vector<SampleResult>* results) {
  results->clear();
  results->resize(requests.size());
  SHOAL_RETURN_IF_ERROR(DrawByArgmax(requests, transport, results));
  return DrawFromWholeRows(requests, transport, results);
}

Best Sampler::LocalBest(const SampleRequest& request) {
  absl::Span<const float> logits = request.logits;
  const base::SamplingParams& params = *request.params;
  if (LogitAdjuster::IsNeeded(params, request.log.size() - request.num_prompt_tokens)) {
    adjusted_.assign(logits.begin(), logits.end());
    adjuster_.Apply(params, request.log, request.num_prompt_tokens, begin_,
                    absl::MakeSpan(adjusted_));
    logits = adjusted_;
  }
  if (params.temperature == 0) return FindBest(logits, begin_, 0, nullptr);
  const GumbelNoise noise = NoiseOf(request);
  return FindBest(logits, begin_, params.temperature, &noise);
}

absl::Status Sampler::DrawByArgmax(absl::Span<const SampleRequest> requests,
                                   parallel::Transport* transport,
                                   std::vector<SampleResult>* results) {
  rows_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!NeedsWholeRow(requests[i])) rows_.push_back(static_cast<int>(i));
  }
  if (rows_.empty()) return absl::OkStatus();
  const size_t num_shards = shard_begins_.size() - 1;
  bests_.resize(num_shards * rows_.size());
  Best* mine = bests_.data() + shard_ * rows_.size();
  for (size_t r = 0; r < rows_.size(); ++r) mine[r] = LocalBest(requests[rows_[r]]);
  if (num_shards > 1) {
    SHOAL_RETURN_IF_ERROR(transport->AllGather(mine, rows_.size() * sizeof(Best), bests_.data()));
  }
  for (size_t r = 0; r < rows_.size(); ++r) {
    Best best = bests_[r];
    for (size_t s = 1; s < num_shards; ++s) best = Better(best, bests_[s * rows_.size() + r]);
    SampleResult& result = (*results)[rows_[r]];
    result.token_id = best.id;
    result.finite = best.finite && best.score > -1e300;
  }
  return absl::OkStatus();
}

absl::Status Sampler::DrawFromWholeRows(absl::Span<const SampleRequest> requests,
                                        parallel::Transport* transport,
                                        std::vector<SampleResult>* results) {
  rows_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (NeedsWholeRow(requests[i])) rows_.push_back(static_cast<int>(i));
  }
  const size_t num_shards = shard_begins_.size() - 1;
  std::vector<size_t> bytes(num_shards);
  for (size_t first = 0; first < rows_.size(); first += kGatherRows) {
    const size_t count = std::min(kGatherRows, rows_.size() - first);
    if (num_shards > 1) {
      sent_.clear();
      for (size_t r = 0; r < count; ++r) {
        const absl::Span<const float> part = requests[rows_[first + r]].logits;
        sent_.insert(sent_.end(), part.begin(), part.end());
      }
      for (size_t s = 0; s < num_shards; ++s) {
        bytes[s] = count * (shard_begins_[s + 1] - shard_begins_[s]) * sizeof(float);
      }
      gathered_.resize(count * vocab_size_);
      SHOAL_RETURN_IF_ERROR(transport->AllGatherV(sent_.data(), bytes, gathered_.data()));
    }
    for (size_t r = 0; r < count; ++r) {
      const SampleRequest& request = requests[rows_[first + r]];
      absl::Span<const float> row = request.logits;
      if (num_shards > 1) {
        row_.clear();
        for (size_t s = 0; s < num_shards; ++s) {
          const size_t width = shard_begins_[s + 1] - shard_begins_[s];
          const float* part = gathered_.data() + count * shard_begins_[s] + r * width;
          row_.insert(row_.end(), part, part + width);
        }
        row = row_;
      }
      DrawWholeRow(request, row, &(*results)[rows_[first + r]]);
    }
  }
  return absl::OkStatus();
}

void Sampler::DrawWholeRow(const SampleRequest& request, absl::Span<const float> row,
                           SampleResult* result) {
  const base::SamplingParams& params = *request.params;
  const Best raw = FindBest(row, 0, 0, nullptr);
  result->finite = raw.finite && raw.score > -1e300;
  if (!result->finite) return;
  if (request.score) {
    result->token_id = request.target;
    result->logprobs = distribution_.Logprobs(row, request.target, params.top_logprobs);
    result->has_logprobs = true;
    return;
  }
  absl::Span<const float> logits = row;
  if (LogitAdjuster::IsNeeded(params, request.log.size() - request.num_prompt_tokens)) {
    adjusted_.assign(row.begin(), row.end());
    adjuster_.Apply(params, request.log, request.num_prompt_tokens, 0, absl::MakeSpan(adjusted_));
    logits = adjusted_;
  }
  const Best drawn = distribution_.Draw(logits, params, NoiseOf(request));
  result->finite = drawn.finite;
  result->token_id = drawn.id;
  if (result->finite && params.top_logprobs >= 0) {
    result->logprobs = distribution_.Logprobs(row, drawn.id, params.top_logprobs);
    result->has_logprobs = true;
  }
}

}  // namespace shoal::worker
