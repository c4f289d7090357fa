#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/text/text_encoder.h"
#include "model/text/vocabulary.h"

namespace shoal::text {

// SentencePiece BPE, tokenizer.ggml.model = "llama". Spaces are U+2581 in the file's pieces, so a
// U+2581 in a text comes back as a space. Neighbours whose text is a piece are merged, best score
// first, the leftmost of equals; a character that is no piece becomes its bytes' <0xXX> tokens, or
// the unknown token if the vocabulary has no byte tokens. (A space that is no piece is <0x20>.)

// The bytes each token of `vocabulary` decodes to. User-defined, control and unknown tokens stand
// for themselves.
std::vector<std::string> SpmTokenBytes(const Vocabulary& vocabulary);

// REQUIRES: ValidateVocabulary(vocabulary) is OK.
// INVALID_ARGUMENT for byte tokens that are malformed, or when the vocabulary has neither all 256
// of them nor an unknown token.
absl::StatusOr<std::unique_ptr<TextEncoder>> NewSpmEncoder(const Vocabulary& vocabulary);

}  // namespace shoal::text
