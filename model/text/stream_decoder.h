#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "model/text/detokenizer.h"

namespace shoal::text {

class Tokenizer;

// The text of one generated sequence as its tokens come, ended by stop strings. The deltas put
// together depend on the tokens alone, not on how they were grouped: they are the text of all
// tokens (Detokenizer), cut at the first stop string.
//
// First means leftmost in the whole text, then the first to complete. So text from which a stop
// string may still grow is held back, until it matches, cannot match any more, or Finish(): then
// nothing of it is lost. A stop string inside a longer one that began before it ("bc" in "abcd")
// is reported when the longer one is decided. One per sequence, not thread-safe.
class StreamDecoder {
 public:
  struct Options {
    // An empty one, or one that is not UTF-8, never matches.
    std::vector<std::string> stop_strings = {};
    bool include_stop_in_output = false;
    bool skip_special_tokens = true;
    bool strip_leading_space = true;  // see Detokenizer::Options
  };

  struct Delta {
    std::string text;  // whole characters of UTF-8; may be empty
    // Index in stop_strings, once, in the delta that ends the text. The caller stops the sequence;
    // later calls return empty deltas.
    std::optional<int> matched_stop_string;
  };

  // `tokenizer` must outlive the decoder.
  StreamDecoder(const Tokenizer* tokenizer, Options options);

  // Costs O(bytes held * stop strings), where what is held is shorter than the longest stop string.
  // An id outside the vocabulary has no text.
  Delta Append(int32_t id);

  // The sequence has ended for another reason: returns what was held back. An incomplete character
  // at the end becomes one U+FFFD. May still match a stop string (see above).
  Delta Finish();

 private:
  struct Decision {
    size_t safe;                    // bytes of held_ that no stop string can touch any more
    std::optional<int> stop_index;  // that begins at byte `safe`
  };

  // `is_final`: no more text comes, so nothing can grow.
  Decision Decide(bool is_final) const;
  Delta Release(bool is_final);

  const Options options_;
  Detokenizer detokenizer_;
  std::string held_;  // text that has not left
  bool is_finished_ = false;
};

}  // namespace shoal::text
