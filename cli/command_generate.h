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
  std::optional<uint32_t> max_tokens;
  std::optional<float> temperature;  // unset: greedy, or 1 if another flag asks for sampling
  std::optional<float> top_p;
  std::optional<int> top_k;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

struct GenerateFlags {
  SamplingFlags sampling;
  std::string prompt;       // "-": stdin, to its end
  bool chat = false;        // the prompt is a user's message
  std::string system;       // with chat
  bool prompt_ids = false;  // the prompt is token ids
  uint32_t n = 1;
  std::optional<uint32_t> logprobs;
  bool ids = false;  // print token ids, not text
  bool no_stream = false;
  std::string request_id;
};

// Applies the flags to `request`. INVALID_ARGUMENT if one of them could have no effect.
absl::Status ApplySampling(const SamplingFlags& flags, uint32_t n,
                           shoal::v1::GenerateRequest* request);

// "1,2 3" -> {1, 2, 3}.
absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(absl::string_view text);

// One request, its text on `session.out` as it comes. `in` is what the prompt "-" reads.
int RunGenerate(const Session& session, const GenerateFlags& flags, std::istream* in);

}  // namespace shoal::cli
