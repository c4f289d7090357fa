#include "model/text/spm.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/text/bpe_merger.h"

namespace shoal::text {
namespace {

constexpr int32_t kNoToken = -1;
constexpr absl::string_view kSpace = "\xE2\x96\x81";  // U+2581

// "<0x0A>" -> 10
std::optional<unsigned char> ParseByteToken(absl::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return std::nullopt;
    value = value * 16 + (c <= '9' ? c - '0' : absl::ascii_toupper(c) - 'A' + 10);
  }
  return static_cast<unsigned char>(value);
}

class SpmEncoder : public TextEncoder {
 public:
  SpmEncoder() { byte_ids_.fill(kNoToken); }

  absl::Status Load(const Vocabulary& vocabulary);
  absl::Status Encode(absl::string_view text, std::vector<int32_t>* ids) const override;

 private:
  struct Piece {
    int32_t id;
    uint32_t rank;  // of its score among all scores, best first; equal scores have equal ranks
    bool is_unused;
  };
  // An unused piece helps others to form but does not appear itself: it is taken apart again into
  // the neighbours it was made of.
  using Splits = absl::flat_hash_map<int32_t, std::pair<BpeMerger::Symbol, BpeMerger::Symbol>>;

  void LoadPieces(const Vocabulary& vocabulary);
  void Emit(absl::string_view bytes, int32_t id, std::vector<int32_t>* ids) const;
  void EmitSplit(absl::string_view bytes, BpeMerger::Symbol symbol, const Splits& splits,
                 std::vector<int32_t>* ids) const;

  absl::flat_hash_map<std::string, Piece> pieces_;  // by text; those that plain text may become
  size_t max_piece_size_ = 0;                       // bytes
  std::array<int32_t, 256> byte_ids_;
  bool has_bytes_ = false;  // all 256 of them
  int32_t unk_id_ = kNoToken;
};

absl::Status SpmEncoder::Load(const Vocabulary& vocabulary) {
  LoadPieces(vocabulary);
  unk_id_ = vocabulary.unk_id;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const TokenType type = vocabulary.type(id);
    if (type == TokenType::kUnknown && unk_id_ == kNoToken) unk_id_ = id;
    if (type != TokenType::kByte) continue;
    const std::optional<unsigned char> byte = ParseByteToken(vocabulary.tokens[id]);
    if (!byte.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tokenizer.ggml.tokens[", id, "] is '", absl::Utf8SafeCEscape(vocabulary.tokens[id]),
          "', but its token type is byte, which is written <0xXX>"));
    }
    byte_ids_[*byte] = id;
  }
  has_bytes_ = std::find(byte_ids_.begin(), byte_ids_.end(), kNoToken) == byte_ids_.end();
  if (!has_bytes_ && unk_id_ == kNoToken) {
    return absl::InvalidArgumentError(
        "tokenizer.ggml.tokens has neither tokens for all 256 bytes nor an unknown token");
  }
  return absl::OkStatus();
}

void SpmEncoder::LoadPieces(const Vocabulary& vocabulary) {
  std::vector<float> scores = vocabulary.scores;
  std::sort(scores.begin(), scores.end(), std::greater<float>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const TokenType type = vocabulary.type(id);
    if (type != TokenType::kNormal && type != TokenType::kUnused) continue;
    const std::string& token = vocabulary.tokens[id];
    if (token.empty()) continue;
    const auto rank = std::lower_bound(scores.begin(), scores.end(), vocabulary.scores[id],
                                       std::greater<float>());
    pieces_[token] = {id, static_cast<uint32_t>(rank - scores.begin()), type == TokenType::kUnused};
    max_piece_size_ = std::max(max_piece_size_, token.size());
  }
}

absl::Status SpmEncoder::Encode(absl::string_view text, std::vector<int32_t>* ids) const {
  const std::string escaped = absl::StrReplaceAll(text, {{" ", kSpace}});
  const absl::string_view bytes = escaped;
  std::vector<BpeMerger::Symbol> symbols;
  symbols.reserve(bytes.size());
  for (size_t pos = 0; pos < bytes.size();) {
    const size_t size = base::Utf8CharacterSize(bytes.substr(pos));
    const auto piece = pieces_.find(bytes.substr(pos, size));
    symbols.push_back(
        {piece == pieces_.end() ? kNoToken : piece->second.id, static_cast<uint32_t>(size)});
    pos += size;
  }

  Splits splits;
  BpeMerger merger;
  merger.Run(
      symbols,
      [&](uint32_t offset, BpeMerger::Symbol left,
          BpeMerger::Symbol right) -> std::optional<Merge> {
        const size_t size = size_t{left.size} + right.size;
        if (size > max_piece_size_) return std::nullopt;
        const auto piece = pieces_.find(bytes.substr(offset, size));
        if (piece == pieces_.end()) return std::nullopt;
        if (piece->second.is_unused) splits[piece->second.id] = {left, right};
        return Merge{piece->second.rank, piece->second.id};
      },
      [&](uint32_t offset, BpeMerger::Symbol symbol) {
        const absl::string_view piece = bytes.substr(offset, symbol.size);
        if (splits.empty()) {
          Emit(piece, symbol.id, ids);
        } else {
          EmitSplit(piece, symbol, splits, ids);
        }
      });
  return absl::OkStatus();
}

void SpmEncoder::EmitSplit(absl::string_view bytes, BpeMerger::Symbol symbol, const Splits& splits,
                           std::vector<int32_t>* ids) const {
  std::vector<BpeMerger::Symbol> rest = {symbol};  // a stack, the leftmost on top
  while (!rest.empty()) {
    const BpeMerger::Symbol next = rest.back();
    rest.pop_back();
    if (const auto split = splits.find(next.id); split != splits.end()) {
      rest.push_back(split->second.second);
      rest.push_back(split->second.first);
      continue;
    }
    Emit(bytes.substr(0, next.size), next.id, ids);
    bytes.remove_prefix(next.size);
  }
}

void SpmEncoder::Emit(absl::string_view bytes, int32_t id, std::vector<int32_t>* ids) const {
  if (id != kNoToken) {
    ids->push_back(id);
  } else if (has_bytes_ && bytes == kSpace) {
    ids->push_back(byte_ids_[' ']);
  } else if (has_bytes_) {
    for (const char c : bytes) ids->push_back(byte_ids_[static_cast<unsigned char>(c)]);
  } else {
    ids->push_back(unk_id_);
  }
}

}  // namespace

std::vector<std::string> SpmTokenBytes(const Vocabulary& vocabulary) {
  std::vector<std::string> bytes(vocabulary.tokens.size());
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    const TokenType type = vocabulary.type(id);
    if (type == TokenType::kNormal || type == TokenType::kUnused) {
      bytes[id] = absl::StrReplaceAll(token, {{kSpace, " "}});
    } else if (const auto byte = ParseByteToken(token); type == TokenType::kByte && byte) {
      bytes[id] = std::string(1, static_cast<char>(*byte));
    } else {
      bytes[id] = token;
    }
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<TextEncoder>> NewSpmEncoder(const Vocabulary& vocabulary) {
  auto encoder = std::make_unique<SpmEncoder>();
  SHOAL_RETURN_IF_ERROR(encoder->Load(vocabulary));
  return encoder;
}

}  // namespace shoal::text
