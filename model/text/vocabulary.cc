#include "model/text/vocabulary.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace shoal::text {
namespace {

absl::Status ValidateCounts(const Vocabulary& vocabulary) {
  const size_t num_tokens = vocabulary.tokens.size();
  if (num_tokens == 0) {
    return absl::InvalidArgumentError("tokenizer.ggml.tokens is missing or empty");
  }
  if (num_tokens > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.ggml.tokens has ", num_tokens, " entries, more than 2^31 - 1"));
  }
  const bool is_spm = vocabulary.model == "llama";
  const std::pair<absl::string_view, size_t> counts[] = {
      {"tokenizer.ggml.scores", vocabulary.scores.size()},
      {"tokenizer.ggml.token_type", vocabulary.types.size()}};
  for (const auto& [key, count] : counts) {
    if (count == num_tokens || (count == 0 && !is_spm)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(key, " has ", count, " entries, but tokenizer.ggml.tokens has ", num_tokens));
  }
  return absl::OkStatus();
}

absl::Status ValidateEntries(const Vocabulary& vocabulary) {
  for (size_t i = 0; i < vocabulary.types.size(); ++i) {
    const int32_t type = vocabulary.types[i];
    if (type < static_cast<int32_t>(TokenType::kNormal) ||
        type > static_cast<int32_t>(TokenType::kByte)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.token_type[", i, "] is ", type, ", token types are 1 to 6"));
    }
  }
  for (size_t i = 0; i < vocabulary.scores.size(); ++i) {
    if (std::isnan(vocabulary.scores[i])) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.scores[", i, "] is NaN"));
    }
  }
  absl::flat_hash_map<absl::string_view, size_t> ids;
  ids.reserve(vocabulary.tokens.size());
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    if (vocabulary.tokens[i].empty()) continue;
    const auto [entry, is_new] = ids.try_emplace(vocabulary.tokens[i], i);
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.tokens[", i, "] repeats token ", entry->second, ", '",
                       absl::Utf8SafeCEscape(vocabulary.tokens[i]), "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateSpecialIds(const Vocabulary& vocabulary) {
  const std::pair<absl::string_view, int32_t> ids[] = {
      {"bos", vocabulary.bos_id}, {"eos", vocabulary.eos_id},     {"eot", vocabulary.eot_id},
      {"eom", vocabulary.eom_id}, {"unknown", vocabulary.unk_id}, {"padding", vocabulary.pad_id}};
  for (const auto& [name, id] : ids) {
    if (id >= -1 && id < vocabulary.size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.", name, "_token_id is ", id,
                                                   ", the vocabulary has ids 0 to ",
                                                   vocabulary.size() - 1));
  }
  if (vocabulary.add_bos.value_or(false) && vocabulary.bos_id < 0) {
    return absl::InvalidArgumentError(
        "tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing");
  }
  if (vocabulary.add_eos.value_or(false) && vocabulary.eos_id < 0) {
    return absl::InvalidArgumentError(
        "tokenizer.ggml.add_eos_token is true, but tokenizer.ggml.eos_token_id is missing");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateVocabulary(const Vocabulary& vocabulary) {
  if (vocabulary.model != "gpt2" && vocabulary.model != "llama") {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.model is '",
                                                   absl::Utf8SafeCEscape(vocabulary.model),
                                                   "', supported are 'gpt2' and 'llama'"));
  }
  SHOAL_RETURN_IF_ERROR(ValidateCounts(vocabulary));
  SHOAL_RETURN_IF_ERROR(ValidateEntries(vocabulary));
  return ValidateSpecialIds(vocabulary);
}

bool IsEndOfTurnName(absl::string_view token) {
  static constexpr absl::string_view kNames[] = {"<|im_end|>",
                                                 "<|eot_id|>",
                                                 "<|eom_id|>",
                                                 "<|end|>",
                                                 "<|endoftext|>",
                                                 "<|end_of_text|>",
                                                 "<end_of_turn>",
                                                 "<|end_of_turn|>",
                                                 "<|return|>",
                                                 "<|call|>",
                                                 "<EOT>",
                                                 "[EOT]",
                                                 "<|END_OF_TURN_TOKEN|>",
                                                 "<end_of_utterance>",
                                                 "<｜end▁of▁sentence｜>"};
  for (const absl::string_view name : kNames) {
    if (token == name) return true;
  }
  return false;
}

}  // namespace shoal::text
