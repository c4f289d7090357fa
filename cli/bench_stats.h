#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace shoal::cli {

// What one request of a benchmark saw.
struct BenchSample {
  std::string error;  // name of the gRPC code; empty: it succeeded
  absl::Duration time_to_first_token;
  absl::Duration end_to_end;
  std::vector<absl::Duration> token_gaps;  // between tokens; those of one message share its gap
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t output_tokens = 0;
};

// Of a set of durations, in milliseconds. All 0 for an empty set.
struct Distribution {
  double mean = 0;
  double p50 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
};

// Percentiles are by nearest rank: the smallest value with at least that share at or below it.
Distribution Describe(std::vector<absl::Duration> values);

struct BenchReport {
  uint64_t seed = 0;  // of the load
  uint64_t num_succeeded = 0;
  std::map<std::string, uint64_t> errors;  // by code
  double wall_s = 0;
  double client_cpu_s = 0;  // of this process
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t output_tokens = 0;
  Distribution time_to_first_token;
  Distribution token_gap;
  Distribution end_to_end;

  double requests_per_s() const { return wall_s > 0 ? num_succeeded / wall_s : 0; }
  double output_tokens_per_s() const { return wall_s > 0 ? output_tokens / wall_s : 0; }
  // Cache hits left out.
  double computed_tokens_per_s() const {
    return wall_s > 0 ? (prompt_tokens - cached_tokens + output_tokens) / wall_s : 0;
  }

  std::string ToTable() const;
  std::string ToJson() const;  // one object, ends with a newline
};

// Tokens and times are those of requests that succeeded.
BenchReport MakeReport(const std::vector<BenchSample>& samples, absl::Duration wall,
                       absl::Duration client_cpu);

}  // namespace shoal::cli
