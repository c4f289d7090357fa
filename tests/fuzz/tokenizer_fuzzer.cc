// Any text through a small vocabulary of each kind. The first byte of the input chooses the
// vocabulary and how the text is cut into spans and tokens; the rest is the text.

#include <glog/logging.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/utf8.h"
#include "model/text/pretokenizer.h"
#include "model/text/stream_decoder.h"
#include "model/text/tokenizer.h"

namespace shoal::text {
namespace {

void AddToken(Vocabulary* vocabulary, absl::string_view token, TokenType type, float score) {
  vocabulary->tokens.emplace_back(token);
  vocabulary->types.push_back(static_cast<int32_t>(type));
  vocabulary->scores.push_back(score);
}

void AddSpecialTokens(Vocabulary* vocabulary) {
  vocabulary->bos_id = vocabulary->size();
  AddToken(vocabulary, "<|begin|>", TokenType::kControl, 0);
  vocabulary->eos_id = vocabulary->size();
  AddToken(vocabulary, "<|im_end|>", TokenType::kControl, 0);
  AddToken(vocabulary, "<t>", TokenType::kUserDefined, 0);
  AddToken(vocabulary, "<t><t>", TokenType::kUserDefined, 0);
}

// The 256 bytes, id = byte, in the file's alphabet.
Vocabulary MakeBpe(absl::string_view pre) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = std::string(pre);
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool is_itself = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    std::string letter;
    base::AppendUtf8(is_itself ? byte : next++, &letter);
    AddToken(&vocabulary, letter, TokenType::kNormal, 0);
  }
  for (const char* merge :
       {"a a", "aa aa", "a b", "\u0120 a", "\u0120 \u0120", "Ã ©", "1 2", "< |"}) {
    const std::string pieces = merge;
    const size_t space = pieces.find(' ');
    AddToken(&vocabulary, absl::StrCat(pieces.substr(0, space), pieces.substr(space + 1)),
             TokenType::kNormal, 0);
    vocabulary.merges.push_back(pieces);
  }
  AddSpecialTokens(&vocabulary);
  return vocabulary;
}

Vocabulary MakeSpm(bool add_space_prefix) {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  for (int byte = 0; byte < 256; ++byte) {
    AddToken(&vocabulary, absl::StrFormat("<0x%02X>", byte), TokenType::kByte, 0);
  }
  float score = 0;
  for (const char* piece : {"aa", "▁a", "ab", "aaaa", "▁▁", "▁", "a", "b", "é", "<|", "中文"}) {
    AddToken(&vocabulary, piece, TokenType::kNormal, score -= 1);
  }
  AddToken(&vocabulary, "aab", TokenType::kUnused, -2);
  AddSpecialTokens(&vocabulary);
  vocabulary.add_space_prefix = add_space_prefix;
  return vocabulary;
}

std::vector<std::unique_ptr<Tokenizer>> MakeTokenizers() {
  std::vector<Vocabulary> vocabularies = {MakeSpm(true), MakeSpm(false)};
  for (const char* pre :
       {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken", "deepseek-v3"}) {
    vocabularies.push_back(MakeBpe(pre));
  }
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  for (const Vocabulary& vocabulary : vocabularies) {
    auto tokenizer = Tokenizer::Create(vocabulary);
    CHECK(tokenizer.ok()) << tokenizer.status();
    tokenizers.push_back(*std::move(tokenizer));
  }
  return tokenizers;
}

// Text becomes the same tokens however it is cut into user spans, and comes back from them.
void CheckRoundTrip(const Tokenizer& tokenizer, absl::string_view text, size_t cut) {
  const auto ids = tokenizer.Encode(text, {});
  const bool is_valid = base::IsValidUtf8(text);
  CHECK_EQ(ids.ok(), is_valid) << ids.status();
  const std::string head(text.substr(0, cut));
  const std::string tail(text.substr(cut));
  const auto spans = tokenizer.EncodeSpans({{head, false}, {tail, false}}, true);
  CHECK_EQ(spans.ok(), is_valid);
  if (!is_valid) return;
  CHECK(*ids == *spans);
  const bool has_bos = !ids->empty() && ids->front() == tokenizer.bos_id();
  CHECK_EQ(has_bos, tokenizer.adds_bos());
  for (size_t i = 0; i < ids->size(); ++i) CHECK(i == 0 || !tokenizer.IsControl((*ids)[i]));
  // In a SentencePiece vocabulary U+2581 is a space.
  const bool may_change = text.find("\u2581") != text.npos;
  if (!may_change) CHECK(*tokenizer.Decode(*ids, true) == text);
  CHECK(tokenizer.EncodeSpans({{head, true}, {tail, false}}, true).ok());
}

// Bytes as tokens: the stream is the whole, cut at the stop string.
void CheckStream(const Tokenizer& tokenizer, absl::string_view text, size_t cut) {
  const std::string stop(text.substr(0, cut % 5));
  std::vector<int32_t> ids;
  for (const char c : text.substr(stop.size())) {
    ids.push_back(static_cast<unsigned char>(c) + static_cast<int32_t>(cut % 7));
  }
  StreamDecoder decoder(&tokenizer, {.stop_strings = {stop}, .skip_special_tokens = false});
  std::string streamed;
  bool is_stopped = false;
  const auto take = [&](const StreamDecoder::Delta& delta) {
    CHECK(base::IsValidUtf8(delta.text));
    streamed += delta.text;
    is_stopped |= delta.matched_stop_string.has_value();
  };
  for (const int32_t id : ids) take(decoder.Append(id));
  take(decoder.Finish());
  const std::string whole = *tokenizer.Decode(ids, false);
  const bool can_match = !stop.empty() && base::IsValidUtf8(stop);
  const size_t found = can_match ? whole.find(stop) : std::string::npos;
  CHECK_EQ(is_stopped, found != std::string::npos);
  CHECK(streamed == whole.substr(0, found));
}

void Run(absl::string_view input) {
  static const auto* const tokenizers =
      new std::vector<std::unique_ptr<Tokenizer>>(MakeTokenizers());
  if (input.empty()) return;
  const auto choice = static_cast<unsigned char>(input[0]);
  const absl::string_view text = input.substr(1);
  const Tokenizer& tokenizer = *(*tokenizers)[choice % tokenizers->size()];
  const size_t cut = text.empty() ? 0 : choice % (text.size() + 1);
  CheckRoundTrip(tokenizer, text, cut);
  CheckStream(tokenizer, text, cut);
}

}  // namespace
}  // namespace shoal::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shoal::text::Run(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
