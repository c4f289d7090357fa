#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shoal::text {

// Cuts text into words, across which byte-level BPE never merges. The cuts are those of the
// regular expressions the vocabulary was trained with: other cuts give other ids, so a name that is
// not in the table is refused rather than guessed. Properties of characters are those of Unicode 14
// (PCRE2 10.42). Immutable, thread-safe.
class Pretokenizer {
 public:
  // What a name implies besides its cuts.
  struct Defaults {
    bool ignore_merges = false;  // a word that is a token is taken whole
    bool add_bos = false;        // where the model file is silent
  };

  // `name` is a value of tokenizer.ggml.pre. INVALID_ARGUMENT, with the list of names, for others.
  static absl::StatusOr<std::unique_ptr<Pretokenizer>> Create(absl::string_view name);
  ~Pretokenizer();

  const Defaults& defaults() const { return defaults_; }

  // Sets `words` to consecutive views that together are `text`. Time is linear for the patterns of
  // the table; the regex engine works on the heap or on 32 KB of stack, whatever the text.
  // REQUIRES: `text` is valid UTF-8.
  // RESOURCE_EXHAUSTED when the regex engine runs out of memory.
  absl::Status Split(absl::string_view text, std::vector<absl::string_view>* words) const;

  // The names Create() accepts.
  static std::vector<std::string> Names();

 private:
  class Pattern;
  explicit Pretokenizer(const Defaults& defaults);

  const Defaults defaults_;
  std::vector<std::unique_ptr<Pattern>> patterns_;  // each cuts what the one before it left whole
};

}  // namespace shoal::text
