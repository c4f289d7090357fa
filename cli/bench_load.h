#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace shoal::cli {

// What a benchmark asks for. Equal options give equal prompts and arrivals on every machine.
struct BenchLoad {
  uint32_t num_requests = 32;
  uint32_t prompt_tokens = 128;
  uint32_t shared_prefix_tokens = 0;  // of every prompt, the same; at most prompt_tokens
  uint32_t num_distinct = 0;          // prompts; requests take them in turn. 0: each has its own
  uint64_t seed = 1;
  uint32_t vocab_size = 0;
  std::vector<uint32_t> end_token_ids;  // never in a prompt
};

// The prompt of request `index`: `prompt_tokens` random ids of the vocabulary.
// REQUIRES: vocab_size is more than the number of end tokens.
std::vector<uint32_t> MakePrompt(const BenchLoad& load, uint32_t index);

// When each of `num_requests` starts, after the first moment: a Poisson process of `rate` a second.
std::vector<absl::Duration> PoissonArrivals(uint32_t num_requests, double rate, uint64_t seed);

}  // namespace shoal::cli
