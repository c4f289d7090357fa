#include "model/text/bpe.h"

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/text/bpe_merger.h"

namespace shoal::text {
namespace {

constexpr int32_t kNoToken = -1;

bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Code point -> byte, -1 for characters outside the alphabet.
std::array<int16_t, 0x144> MakeAlphabet() {
  std::array<int16_t, 0x144> bytes;
  bytes.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    bytes[StandsForItself(byte) ? byte : next++] = static_cast<int16_t>(byte);
  }
  return bytes;
}

std::optional<std::string> BytesFromAlphabet(absl::string_view token) {
  static const std::array<int16_t, 0x144> alphabet = MakeAlphabet();
  if (!base::IsValidUtf8(token)) return std::nullopt;
  std::string bytes;
  for (size_t pos = 0; pos < token.size();) {
    const char32_t c = base::NextCodePoint(token, &pos);
    if (c >= alphabet.size() || alphabet[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(alphabet[c]));
  }
  return bytes;
}

// Control tokens come from the template alone, unknown ones from nothing: neither may be the result
// of a merge, or user text could forge them.
bool IsProducible(TokenType type) {
  return type != TokenType::kControl && type != TokenType::kUnknown;
}

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

class BpeEncoder : public TextEncoder {
 public:
  explicit BpeEncoder(std::unique_ptr<Pretokenizer> pretokenizer)
      : pretokenizer_(std::move(pretokenizer)) {
    byte_ids_.fill(kNoToken);
  }

  void LoadTokens(const Vocabulary& vocabulary, bool keep_words);
  absl::Status LoadMerges(const Vocabulary& vocabulary);

  absl::Status Encode(absl::string_view text, std::vector<int32_t>* ids) const override;

 private:
  absl::Status EncodeWord(absl::string_view word, BpeMerger* merger,
                          std::vector<BpeMerger::Symbol>* symbols, std::vector<int32_t>* ids) const;

  const std::unique_ptr<Pretokenizer> pretokenizer_;
  std::array<int32_t, 256> byte_ids_;                // kNoToken: the vocabulary lacks that byte
  bool has_long_tokens_ = false;                     // normal tokens of two bytes or more
  absl::flat_hash_map<uint64_t, Merge> merges_;      // PairKey(left, right)
  absl::flat_hash_map<std::string, int32_t> words_;  // tokens by bytes; empty: merges decide
};

void BpeEncoder::LoadTokens(const Vocabulary& vocabulary, bool keep_words) {
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.type(id) != TokenType::kNormal) continue;
    std::optional<std::string> bytes = BytesFromAlphabet(vocabulary.tokens[id]);
    if (!bytes.has_value() || bytes->empty()) continue;
    if (bytes->size() == 1) byte_ids_[static_cast<unsigned char>((*bytes)[0])] = id;
    if (bytes->size() > 1) has_long_tokens_ = true;
    if (keep_words) words_.try_emplace(*std::move(bytes), id);
  }
}

absl::Status BpeEncoder::LoadMerges(const Vocabulary& vocabulary) {
  if (vocabulary.merges.empty() && has_long_tokens_) {
    return absl::InvalidArgumentError(
        "tokenizer.ggml.merges is missing, but tokenizer.ggml.tokens has tokens of several bytes");
  }
  absl::flat_hash_map<absl::string_view, int32_t> ids;
  ids.reserve(vocabulary.tokens.size());
  for (int32_t id = 0; id < vocabulary.size(); ++id) ids.try_emplace(vocabulary.tokens[id], id);
  merges_.reserve(vocabulary.merges.size());
  for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const absl::string_view merge = vocabulary.merges[rank];
    const auto refuse = [rank, merge](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.merges[", rank, "] is '",
                                                     absl::Utf8SafeCEscape(merge), "': ", why));
    };
    const size_t space = merge.find(' ', 1);
    if (space == absl::string_view::npos || space + 1 == merge.size()) {
      return refuse("expected two pieces with a space between them");
    }
    const absl::string_view left = merge.substr(0, space);
    const absl::string_view right = merge.substr(space + 1);
    const auto left_id = ids.find(left);
    const auto right_id = ids.find(right);
    const auto joined_id = ids.find(absl::StrCat(left, right));
    if (left_id == ids.end() || right_id == ids.end() || joined_id == ids.end()) {
      return refuse("both pieces and what they form must be in tokenizer.ggml.tokens");
    }
    if (!IsProducible(vocabulary.type(joined_id->second))) continue;
    merges_.try_emplace(PairKey(left_id->second, right_id->second),
                        Merge{static_cast<uint32_t>(rank), joined_id->second});
  }
  return absl::OkStatus();
}

absl::Status BpeEncoder::Encode(absl::string_view text, std::vector<int32_t>* ids) const {
  std::vector<absl::string_view> words;
  SHOAL_RETURN_IF_ERROR(pretokenizer_->Split(text, &words));
  BpeMerger merger;
  std::vector<BpeMerger::Symbol> symbols;
  for (const absl::string_view word : words) {
    if (!words_.empty()) {
      if (const auto token = words_.find(word); token != words_.end()) {
        ids->push_back(token->second);
        continue;
      }
    }
    SHOAL_RETURN_IF_ERROR(EncodeWord(word, &merger, &symbols, ids));
  }
  return absl::OkStatus();
}

absl::Status BpeEncoder::EncodeWord(absl::string_view word, BpeMerger* merger,
                                    std::vector<BpeMerger::Symbol>* symbols,
                                    std::vector<int32_t>* ids) const {
  symbols->clear();
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id == kNoToken) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the text has the byte 0x%02X, for which the vocabulary has no token",
                          static_cast<unsigned char>(c)));
    }
    symbols->push_back({id, 1});
  }
  merger->Run(
      *symbols,
      [this](uint32_t, BpeMerger::Symbol left, BpeMerger::Symbol right) -> std::optional<Merge> {
        const auto merge = merges_.find(PairKey(left.id, right.id));
        if (merge == merges_.end()) return std::nullopt;
        return merge->second;
      },
      [ids](uint32_t, BpeMerger::Symbol symbol) { ids->push_back(symbol.id); });
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> BpeTokenBytes(const Vocabulary& vocabulary) {
  std::vector<std::string> bytes(vocabulary.tokens.size());
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    switch (vocabulary.type(id)) {
      case TokenType::kUnused:
        break;
      case TokenType::kNormal:
        bytes[id] = BytesFromAlphabet(token).value_or(token);
        break;
      default:
        bytes[id] = token;
    }
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<TextEncoder>> NewBpeEncoder(
    const Vocabulary& vocabulary, std::unique_ptr<Pretokenizer> pretokenizer, bool ignore_merges) {
  auto encoder = std::make_unique<BpeEncoder>(std::move(pretokenizer));
  encoder->LoadTokens(vocabulary, ignore_merges);
  SHOAL_RETURN_IF_ERROR(encoder->LoadMerges(vocabulary));
  return encoder;
}

}  // namespace shoal::text
