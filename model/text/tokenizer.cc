#include "model/text/tokenizer.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/text/bpe.h"
#include "model/text/detokenizer.h"
#include "model/text/pretokenizer.h"
#include "model/text/spm.h"

namespace shoal::text {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

absl::Status ValidateText(absl::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the text has ", text.size(), " bytes, the tokeniser takes at most ", kMaxTextBytes));
  }
  if (const size_t offset = base::FindInvalidUtf8(text); offset != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the text is not valid UTF-8 at byte ", offset));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(Vocabulary vocabulary) {
  SHOAL_RETURN_IF_ERROR(ValidateVocabulary(vocabulary));
  // A turn's end that a file marks as user-defined would be matched in what users write.
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.types.size()); ++id) {
    if (vocabulary.type(id) == TokenType::kUserDefined && IsEndOfTurnName(vocabulary.tokens[id])) {
      vocabulary.types[id] = static_cast<int32_t>(TokenType::kControl);
    }
  }
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  SHOAL_RETURN_IF_ERROR(tokenizer->LoadEncoder(vocabulary));
  tokenizer->LoadSpecialTokens(vocabulary);
  return tokenizer;
}

absl::Status Tokenizer::LoadEncoder(const Vocabulary& vocabulary) {
  bool default_add_bos = false;
  if (vocabulary.model == "gpt2") {
    SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Pretokenizer> pretokenizer,
                           Pretokenizer::Create(vocabulary.pre));
    default_add_bos = pretokenizer->defaults().add_bos;
    const bool ignore_merges = pretokenizer->defaults().ignore_merges;
    bytes_ = BpeTokenBytes(vocabulary);
    SHOAL_ASSIGN_OR_RETURN(encoder_,
                           NewBpeEncoder(vocabulary, std::move(pretokenizer), ignore_merges));
  } else {
    default_add_bos = true;
    add_space_prefix_ = vocabulary.add_space_prefix.value_or(true);
    bytes_ = SpmTokenBytes(vocabulary);
    SHOAL_ASSIGN_OR_RETURN(encoder_, NewSpmEncoder(vocabulary));
  }
  bos_id_ = vocabulary.bos_id;
  eos_id_ = vocabulary.eos_id;
  add_bos_ = vocabulary.add_bos.value_or(default_add_bos) && bos_id_ >= 0;
  add_eos_ = vocabulary.add_eos.value_or(false);
  return absl::OkStatus();
}

void Tokenizer::LoadSpecialTokens(const Vocabulary& vocabulary) {
  traits_.resize(vocabulary.tokens.size());
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const TokenType type = vocabulary.type(id);
    const std::string& token = vocabulary.tokens[id];
    const bool is_control = type == TokenType::kControl || type == TokenType::kUnknown;
    traits_[id].is_control = is_control;
    if (is_control || type == TokenType::kUserDefined) {
      traits_[id].ends_generation = IsEndOfTurnName(token);
      if (!token.empty()) specials_.Add(token, id, is_control);
    }
  }
  for (const int32_t id : {vocabulary.eos_id, vocabulary.eot_id, vocabulary.eom_id}) {
    if (id >= 0) traits_[id].ends_generation = true;
  }
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view utf8,
                                                       const Options& options) const {
  std::vector<ByteRange> template_ranges;
  if (options.parse_special) template_ranges.push_back({0, utf8.size()});
  return EncodeRanges(utf8, template_ranges, options.add_special);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeSpans(absl::Span<const TextSpan> spans,
                                                            bool add_special) const {
  std::string text;
  std::vector<ByteRange> template_ranges;
  for (const TextSpan& span : spans) {
    const size_t begin = text.size();
    text += span.text;
    if (!span.is_template) continue;
    if (!template_ranges.empty() && template_ranges.back().end == begin) {
      template_ranges.back().end = text.size();
    } else {
      template_ranges.push_back({begin, text.size()});
    }
  }
  return EncodeRanges(text, template_ranges, add_special);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeRanges(
    absl::string_view text, absl::Span<const ByteRange> template_ranges, bool add_special) const {
  SHOAL_RETURN_IF_ERROR(ValidateText(text));
  std::vector<int32_t> ids;
  size_t plain_begin = 0;              // start of the text that no token has been found for yet
  bool add_space = add_space_prefix_;  // before the next text that is not a control token
  const auto flush = [&](size_t end) {
    const absl::string_view plain = text.substr(plain_begin, end - plain_begin);
    if (plain.empty()) return absl::OkStatus();
    const bool add_space_now = std::exchange(add_space, false);
    return EncodePlain(plain, add_space_now, &ids);
  };
  auto range = template_ranges.begin();
  for (size_t pos = 0; pos < text.size();) {
    while (range != template_ranges.end() && range->end <= pos) ++range;
    const bool in_template = range != template_ranges.end() && range->begin <= pos;
    const auto match = specials_.LongestAt(text, pos, in_template ? range->end : 0);
    if (!match.has_value()) {
      ++pos;
      continue;
    }
    SHOAL_RETURN_IF_ERROR(flush(match->begin));
    if (match->is_control) {
      add_space = add_space_prefix_;
    } else if (std::exchange(add_space, false)) {
      SHOAL_RETURN_IF_ERROR(EncodePlain("", /*add_space=*/true, &ids));
    }
    ids.push_back(match->id);
    pos = plain_begin = match->end;
  }
  SHOAL_RETURN_IF_ERROR(flush(text.size()));
  if (add_special && add_bos_ && (ids.empty() || ids.front() != bos_id_)) {
    ids.insert(ids.begin(), bos_id_);
  }
  if (add_special && add_eos_ && (ids.empty() || ids.back() != eos_id_)) ids.push_back(eos_id_);
  return ids;
}

absl::Status Tokenizer::EncodePlain(absl::string_view text, bool add_space,
                                    std::vector<int32_t>* ids) const {
  if (add_space) return encoder_->Encode(absl::StrCat(" ", text), ids);
  return encoder_->Encode(text, ids);
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids,
                                              bool skip_special) const {
  Detokenizer detokenizer(this, {.skip_special_tokens = skip_special});
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!IsInVocabulary(ids[i])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token ", i, " is ", ids[i], ", the vocabulary has ids 0 to ", vocab_size() - 1));
    }
    detokenizer.Append(ids[i], &text);
  }
  detokenizer.Finish(&text);
  return text;
}

const std::string& Tokenizer::TokenBytes(int32_t id) const {
  static const std::string* const kNone = new std::string();
  return IsInVocabulary(id) ? bytes_[id] : *kNone;
}

bool Tokenizer::IsControl(int32_t id) const { return IsInVocabulary(id) && traits_[id].is_control; }

bool Tokenizer::IsEndOfGeneration(int32_t id) const {
  return IsInVocabulary(id) && traits_[id].ends_generation;
}

}  // namespace shoal::text
