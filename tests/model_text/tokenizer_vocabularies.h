#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "model/text/vocabulary.h"

// Vocabularies and texts for the tokeniser tests.

namespace shoal::text {

// Byte-level BPE: 256 byte tokens (id = byte), `merges` ("A B", in the file's alphabet), then
// control tokens <|endoftext|>, <|im_start|>, <|im_end|> (eos), then the user-defined <think>.
Vocabulary SmallBpe(const std::vector<std::string>& merges, absl::string_view pre = "gpt-2");

// SentencePiece: <unk> <s> </s>, 256 byte tokens, `pieces` with their scores, then the control
// token [INST] and the user-defined <think>.
Vocabulary SmallSpm(const std::vector<std::pair<std::string, float>>& pieces);

// The id of `token`, which must be in the vocabulary.
int32_t IdOf(const Vocabulary& vocabulary, absl::string_view token);

// The byte `byte` as byte-level BPE writes it in a file.
std::string BpeLetter(unsigned char byte);

// A public vocabulary and its texts with known ids, from $SHOAL_CASES_DIR/tokenizer.
struct KnownCases {
  Vocabulary vocabulary;
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> ids;  // without BOS and EOS
};

// The folder of test data; empty when this machine has none.
std::string TokenizerCasesFolder();
KnownCases LoadKnownCases(const std::string& folder, const std::string& name);

// A fixture of tests/python/tokenizer_oracle.py: a vocabulary, and texts with their ids.
KnownCases LoadBpeFixture(const std::string& file);

// The folder of the committed fixtures, or $SHOAL_TOKENIZER_DATA.
std::string FixtureFolder();

// `num_characters` characters, most of them from the parts of Unicode where tokenisers go wrong.
class RandomText {
 public:
  explicit RandomText(uint64_t seed) : state_(seed * 2 + 1) {}
  std::string Next(int max_atoms);
  uint32_t Below(uint32_t limit);

 private:
  uint64_t state_;
};

}  // namespace shoal::text
