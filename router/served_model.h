#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "model/text/chat_template.h"
#include "model/text/tokenizer.h"

namespace shoal::worker::v1 {
class ModelDescription;
}

namespace shoal::router {

// What the router knows of the model its ranks serve: enough to check, tokenise and render a
// request and to turn tokens into text. Immutable, so every thread may read it. Shared by the
// group's shell, which publishes it, and by the requests that run, which must not lose it under
// their feet.
struct ServedModel {
  std::string name;          // what clients ask for
  std::string architecture;  // "llama"
  std::string quantization;  // "Q8_0"
  uint64_t fingerprint = 0;
  std::string numerics_id;  // same id, same bits
  absl::Time load_time;
  uint32_t max_seq_len = 0;  // tokens of prompt and output together that the group can hold
  uint32_t vocab_size = 0;
  std::vector<uint32_t> eos_ids;  // ascending
  uint32_t max_token_bytes =
      1;  // longest text of a token: n bytes are at least n / this many tokens
  std::unique_ptr<const text::Tokenizer> tokenizer;
  std::unique_ptr<const text::ChatTemplate> chat_template;  // null: the model has none

  // Whether a request that asks for `model` means this one. Empty means "whatever is served".
  bool Answers(absl::string_view model) const { return model.empty() || model == name; }
};

// The facts that do not stand in a model's description.
struct ServingFacts {
  std::string name;  // empty: the description's, which may lack one: then its architecture
  std::string numerics_id;
  absl::Time load_time;
  uint32_t max_seq_len = 0;
};

// INVALID_ARGUMENT when the tokenizer or the template of the description is refused, or the context
// has no room for a prompt and an answer.
absl::StatusOr<std::shared_ptr<const ServedModel>> MakeServedModel(
    const worker::v1::ModelDescription& description, const ServingFacts& facts);

}  // namespace shoal::router
