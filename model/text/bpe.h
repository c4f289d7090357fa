#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/text/pretokenizer.h"
#include "model/text/text_encoder.h"
#include "model/text/vocabulary.h"

namespace shoal::text {

// Byte-level BPE, tokenizer.ggml.model = "gpt2". The file writes each byte of a token as one
// printable character: bytes 21-7E, A1-AC and AE-FF (hex) as the character of that number, the
// other 68, in order, as U+0100 to U+0143 (so a space is U+0120).

// The bytes each token of `vocabulary` decodes to. Only normal tokens are written in the alphabet
// above; the others, and normal ones with characters outside it, stand for themselves; unused ones
// have no text.
std::vector<std::string> BpeTokenBytes(const Vocabulary& vocabulary);

// `ignore_merges`: a word that is a token is taken whole, whatever the merges would make of it.
// REQUIRES: ValidateVocabulary(vocabulary) is OK.
// INVALID_ARGUMENT for merges that are malformed, name a piece that is no token, or are missing
// although the vocabulary has tokens longer than a byte.
absl::StatusOr<std::unique_ptr<TextEncoder>> NewBpeEncoder(
    const Vocabulary& vocabulary, std::unique_ptr<Pretokenizer> pretokenizer, bool ignore_merges);

}  // namespace shoal::text
