#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shoal::text {

// Turns plain text into token ids: one implementation for each tokenizer.ggml.model (bpe.h, spm.h).
// Knows nothing of control tokens, BOS or prefixes: class Tokenizer cuts those out. Immutable, any
// number of threads may call it at once; stack use is small and does not grow with the text.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // Appends the ids of `text` to `ids`. O(n log n). Never yields a control token.
  // REQUIRES: `text` is valid UTF-8 of at most 2^30 bytes.
  // INVALID_ARGUMENT for a character that the vocabulary cannot express.
  virtual absl::Status Encode(absl::string_view text, std::vector<int32_t>* ids) const = 0;
};

}  // namespace shoal::text
