#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/served_model.h"
#include "shoal/v1/inference.pb.h"

namespace shoal::router {

// The prompt of a request, from whichever form its client chose.

// Text of a template and of users, told apart: only the former may become control tokens. Errors:
// INVALID_ARGUMENT when the model has no template, the text is longer than `max_bytes`, there are
// more than 65,536 messages, tools and tool calls, the template refuses the conversation (its own
// message is passed on), or there are tools and the text is the same without them.
absl::StatusOr<std::vector<text::TextSpan>> RenderChat(const ServedModel& model,
                                                       const v1::ChatInput& chat, size_t max_bytes,
                                                       absl::Time now);

struct PromptLimits {
  size_t max_bytes = 0;     // of text
  uint32_t max_tokens = 0;  // of the prompt, after truncation
};

// The prompt's tokens, never none, cut to the last `truncate_prompt_tokens` where the request asks.
// INVALID_ARGUMENT for no input, an empty prompt (text that gets a BOS has one token and is fine),
// ids out of the vocabulary, and more than the limits. A text that cannot fit is refused before it
// is tokenised.
absl::StatusOr<std::vector<uint32_t>> BuildPrompt(const ServedModel& model,
                                                  const v1::GenerateRequest& request,
                                                  const PromptLimits& limits, absl::Time now);

// The text of `ids`: always UTF-8. REQUIRES: every id is in the vocabulary.
std::string TextOf(const ServedModel& model, absl::Span<const uint32_t> ids,
                   bool skip_special_tokens);

}  // namespace shoal::router
