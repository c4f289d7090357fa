#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client.h"
#include "shoal/v1/inference.pb.h"

namespace shoal::cli {

// What `generate` and `chat` share: how tokens are chosen and when to stop.
struct SamplingFlags {
  std::string model;
  uint32_t max_tokens = 256;  // 0: to the end of the context
  uint32_t min_tokens = 0;
  std::optional<float> temperature;  // unset: greedy, or 1 if another flag asks for sampling
  std::optional<float> top_p;
  std::optional<int> top_k;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::vector<std::string> logit_bias;  // "ID:BIAS"
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;  // may have \n and the like
  bool ignore_eos = false;
  std::string priority;  // low, normal, high; empty: normal
  std::string cache_salt;
  bool stats = false;  // a line on stderr after each answer
};

struct GenerateFlags {
  SamplingFlags sampling;
  std::vector<std::string> words;  // the prompt, joined by spaces; none, or "-": stdin, to its end
  bool chat = false;               // the prompt is a user's message
  std::string system;              // with chat
  bool prompt_ids = false;         // the prompt is token ids
  uint32_t n = 1;
  std::optional<uint32_t> logprobs;
  bool ids = false;   // print token ids, not text
  bool echo = false;  // the prompt leads the output
  bool no_stream = false;
  std::string request_id;
};

// Applies the flags to `request`. INVALID_ARGUMENT if one of them is malformed or could have no
// effect.
absl::Status ApplySampling(const SamplingFlags& flags, uint32_t n,
                           shoal::v1::GenerateRequest* request);

// "1,2 3" -> {1, 2, 3}.
absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(absl::string_view text);

// One request, its text on `session.out` as it comes. `in` is what the prompt "-" reads.
int RunGenerate(const Session& session, const GenerateFlags& flags, std::istream* in);

}  // namespace shoal::cli
