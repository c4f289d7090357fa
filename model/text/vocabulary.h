#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shoal::text {

// Values of tokenizer.ggml.token_type.
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,  // matched in any text before anything else
  kUnused = 5,
  kByte = 6,  // <0xXX>
};

// What a model file says about its tokens: GGUF's tokenizer.ggml.* keys, copied. The id of a token
// is its index in `tokens`.
struct Vocabulary {
  std::string model;                // "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE)
  std::string pre;                  // name of the pre-tokeniser; gpt2 only
  std::vector<std::string> tokens;  // gpt2: in the alphabet of bpe.h; llama: ' ' is U+2581
  std::vector<float> scores;        // [tokens]; gpt2: may be empty
  std::vector<int32_t> types;       // [tokens] TokenType; gpt2: empty means all normal
  std::vector<std::string> merges;  // "A B", best first; gpt2 only

  // -1: the model has none.
  int32_t bos_id = -1;
  int32_t eos_id = -1;
  int32_t eot_id = -1;
  int32_t eom_id = -1;
  int32_t unk_id = -1;
  int32_t pad_id = -1;

  // Absent: the default of the model and the pre-tokeniser, as llama.cpp has it. llama: BOS and the
  // space prefix are added. gpt2: no BOS, but llama3's and tekken's relatives add it.
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;  // llama only

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  // REQUIRES: 0 <= id < size(), and ValidateVocabulary() is OK.
  TokenType type(int32_t id) const {
    return types.empty() ? TokenType::kNormal : static_cast<TokenType>(types[id]);
  }
};

// INVALID_ARGUMENT, with GGUF's key and the value, for counts that do not fit each other, unknown
// token types, scores that are not numbers, special ids outside the vocabulary, and a token that
// is there twice. Empty tokens are allowed: they are never produced and have no text.
absl::Status ValidateVocabulary(const Vocabulary& vocabulary);

// Whether a control or user-defined token of this text ends a model's turn in the common chat
// formats, for files whose eos id names another one.
bool IsEndOfTurnName(absl::string_view token);

}  // namespace shoal::text
