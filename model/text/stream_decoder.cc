#include "model/text/stream_decoder.h"

#include <utility>

#include "absl/strings/match.h"
#include "base/utf8.h"
#include "model/text/tokenizer.h"

namespace shoal::text {
namespace {

StreamDecoder::Options WithoutBadStops(StreamDecoder::Options options) {
  for (std::string& stop : options.stop_strings) {
    if (!base::IsValidUtf8(stop)) stop.clear();  // keeps the indices
  }
  return options;
}

}  // namespace

StreamDecoder::StreamDecoder(const Tokenizer* tokenizer, Options options)
    : options_(WithoutBadStops(std::move(options))),
      detokenizer_(tokenizer, {.skip_special_tokens = options_.skip_special_tokens,
                               .strip_leading_space = options_.strip_leading_space}) {}

StreamDecoder::Delta StreamDecoder::Append(int32_t id) {
  if (is_finished_) return {};
  detokenizer_.Append(id, &held_);
  return Release(/*is_final=*/false);
}

StreamDecoder::Delta StreamDecoder::Finish() {
  if (is_finished_) return {};
  detokenizer_.Finish(&held_);
  Delta delta = Release(/*is_final=*/true);
  is_finished_ = true;
  return delta;
}

StreamDecoder::Decision StreamDecoder::Decide(bool is_final) const {
  for (size_t begin = 0; begin < held_.size();) {
    const absl::string_view rest = absl::string_view(held_).substr(begin);
    bool may_grow = false;
    std::optional<int> match;
    for (size_t i = 0; i < options_.stop_strings.size(); ++i) {
      const std::string& stop = options_.stop_strings[i];
      if (stop.empty()) continue;
      if (absl::StartsWith(rest, stop)) {
        const bool is_shorter =
            !match.has_value() || stop.size() < options_.stop_strings[*match].size();
        if (is_shorter) match = static_cast<int>(i);
      } else if (absl::StartsWith(stop, rest)) {
        may_grow = true;
      }
    }
    if (match.has_value()) return {begin, match};
    if (may_grow && !is_final) return {begin, std::nullopt};
    begin += base::Utf8CharacterSize(rest);  // never 0: the assembler lets only whole ones out
  }
  return {held_.size(), std::nullopt};
}

StreamDecoder::Delta StreamDecoder::Release(bool is_final) {
  const Decision decision = Decide(is_final);
  size_t size = decision.safe;
  if (decision.stop_index.has_value()) {
    is_finished_ = true;
    if (options_.include_stop_in_output) size += options_.stop_strings[*decision.stop_index].size();
  }
  Delta delta{held_.substr(0, size), decision.stop_index};
  held_.erase(0, size);
  return delta;
}

}  // namespace shoal::text
