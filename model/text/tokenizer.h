#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/text/special_matcher.h"
#include "model/text/text_encoder.h"
#include "model/text/text_span.h"
#include "model/text/vocabulary.h"

namespace shoal::text {

// Text to token ids and back, for one model. Immutable after creation; any number of threads may
// use it at once.
//
// Special tokens are cut out first. User-defined ones are matched in every text. Control (and
// unknown) tokens are matched only in text that a template wrote: a user's "<|im_end|>" is ten
// ordinary characters, and no merge ever yields a control token. The leftmost match wins, then the
// longest.
class Tokenizer {
 public:
  // INVALID_ARGUMENT, with GGUF's key and the value, for a vocabulary that is inconsistent
  // (ValidateVocabulary, bpe.h, spm.h) or has an unknown pre-tokeniser.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(Vocabulary vocabulary);

  struct Options {
    bool add_special = true;     // BOS and EOS, if the model wants them
    bool parse_special = false;  // the text is a template's: control tokens are recognised
  };

  // The ids of `utf8`. At most one BOS is put in front, and none if the ids begin with it already;
  // the same holds for EOS at the end. The empty text gives BOS alone, or nothing.
  // INVALID_ARGUMENT for bytes that are not UTF-8 (with their offset), for more than 2^30 bytes,
  // and for characters that the vocabulary cannot express. Callers limit the size much lower:
  // memory is some 50 bytes for each byte of text.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view utf8, const Options& options) const;

  // The ids of the spans' texts put together: where one span ends and the next begins changes no
  // merge. A control token is recognised where all its bytes are template text. Errors as Encode's;
  // offsets count from the first span.
  absl::StatusOr<std::vector<int32_t>> EncodeSpans(absl::Span<const TextSpan> spans,
                                                   bool add_special) const;

  // The text of `ids`, always valid UTF-8 (Detokenizer says how); Decode(Encode(x)) == x.
  // `skip_special`: control tokens have no text. INVALID_ARGUMENT for an id outside the vocabulary.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids, bool skip_special) const;

  // The bytes `id` stands for, which may be part of a character; a control token's name. Empty for
  // an id outside the vocabulary.
  const std::string& TokenBytes(int32_t id) const;

  // Control or unknown. False for an id outside the vocabulary, as are the others.
  bool IsControl(int32_t id) const;
  // The model ends its turn with this token: eos, eot, eom, or one known by its name.
  bool IsEndOfGeneration(int32_t id) const;

  int32_t vocab_size() const { return static_cast<int32_t>(bytes_.size()); }
  int32_t bos_id() const { return bos_id_; }  // -1: none
  int32_t eos_id() const { return eos_id_; }  // -1: none
  bool adds_bos() const { return add_bos_; }
  bool adds_eos() const { return add_eos_; }
  bool adds_space_prefix() const { return add_space_prefix_; }

 private:
  struct Traits {
    bool is_control = false;
    bool ends_generation = false;
  };
  struct ByteRange {
    size_t begin, end;
  };

  Tokenizer() = default;
  absl::Status LoadEncoder(const Vocabulary& vocabulary);
  void LoadSpecialTokens(const Vocabulary& vocabulary);

  // `template_ranges` are sorted and do not touch: the parts of `text` that a template wrote.
  absl::StatusOr<std::vector<int32_t>> EncodeRanges(absl::string_view text,
                                                    absl::Span<const ByteRange> template_ranges,
                                                    bool add_special) const;
  absl::Status EncodePlain(absl::string_view text, bool add_space, std::vector<int32_t>* ids) const;

  bool IsInVocabulary(int32_t id) const { return id >= 0 && id < vocab_size(); }

  std::unique_ptr<TextEncoder> encoder_;
  SpecialMatcher specials_;
  std::vector<std::string> bytes_;  // [vocab_size]
  std::vector<Traits> traits_;      // [vocab_size]
  int32_t bos_id_ = -1;
  int32_t eos_id_ = -1;
  bool add_bos_ = false;
  bool add_eos_ = false;
  bool add_space_prefix_ = false;
};

}  // namespace shoal::text
