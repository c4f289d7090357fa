#pragma once

#include <cstdint>
#include <string>

#include "model/text/utf8_assembler.h"

namespace shoal::text {

class Tokenizer;

// Joins the text of tokens that come one by one. What leaves is valid UTF-8 whatever the tokens:
// see Utf8Assembler for how bytes that form no character are replaced. One stream each; not
// thread-safe.
class Detokenizer {
 public:
  struct Options {
    bool skip_special_tokens = true;  // control tokens have no text; else the text of their name
    // Drop the space that a SentencePiece vocabulary puts before the first word, if it puts one.
    // False where the tokens continue a text.
    bool strip_leading_space = true;
  };

  // `tokenizer` must outlive the detokeniser.
  Detokenizer(const Tokenizer* tokenizer, const Options& options);

  // Appends what `id` completes to `out`. An id outside the vocabulary (models may have more rows
  // than tokens) has no text.
  void Append(int32_t id, std::string* out);

  // No more tokens come: a character that is still incomplete becomes one U+FFFD.
  void Finish(std::string* out);

 private:
  const Tokenizer* const tokenizer_;
  const bool skip_special_tokens_;
  bool strip_next_space_;
  Utf8Assembler assembler_;
};

}  // namespace shoal::text
