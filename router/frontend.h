#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/control/request.h"
#include "router/served_model.h"
#include "shoal/v1/inference.pb.h"

namespace shoal::router {

// A client's request after every check: what only this type carries needs no check again.
struct ValidRequest {
  std::string request_id;           // never empty; printable ASCII
  std::vector<uint32_t> prompt;     // never empty; truncated already
  std::vector<uint32_t> generated;  // of a resumed stream: what its client has already
  uint32_t max_tokens = 0;          // with `generated`; fits the context
  SamplingParams sampling;          // choice is 0; the seed is set
  std::vector<uint32_t> stop_token_ids;
  bool ignore_eos = false;
  std::vector<std::string> stop_strings;
  bool include_stop_in_output = false;
  uint32_t num_choices = 1;
  bool echo = false;
  bool return_token_ids = false;
  bool skip_special_tokens = true;
  Priority priority = Priority::kNormal;
  std::string cache_salt;
  absl::Time arrival;
  absl::Time deadline;
};

// Turns requests of clients into ValidRequests, and serves the calls that need no rank. Stateless
// but for its arguments; every thread may call it. Errors are INVALID_ARGUMENT with a
// google.rpc.BadRequest that names the fields, NOT_FOUND for another model.
class Frontend {
 public:
  struct Limits {
    size_t max_prompt_bytes = 4 << 20;   // of the text of a prompt, a conversation or tokens
    size_t max_listed_tokens = 1 << 20;  // with their text, as Tokenize answers
  };
  // 64 random bits. Called by any thread.
  using RandomSource = std::function<uint64_t()>;

  Frontend(Limits limits, RandomSource random) : limits_(limits), random_(std::move(random)) {}

  absl::StatusOr<ValidRequest> Validate(const ServedModel& model,
                                        const v1::GenerateRequest& request, absl::Time now,
                                        absl::Time deadline) const;

  absl::StatusOr<v1::TokenizeResponse> Tokenize(const ServedModel& model,
                                                const v1::TokenizeRequest& request) const;
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const ServedModel& model,
                                                    const v1::DetokenizeRequest& request) const;
  absl::StatusOr<v1::ApplyChatTemplateResponse> ApplyChatTemplate(
      const ServedModel& model, const v1::ApplyChatTemplateRequest& request, absl::Time now) const;

 private:
  const Limits limits_;
  const RandomSource random_;
};

// NOT_FOUND, with the name served, unless `model` answers to `name`.
absl::Status CheckModelName(const ServedModel& model, absl::string_view name);

}  // namespace shoal::router
