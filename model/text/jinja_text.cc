#include "model/text/jinja_text.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/text/jinja_operators.h"
#include "model/text/jinja_print.h"
#include "model/text/jinja_unicode.h"

namespace shoal::text::jinja {
namespace {

constexpr size_t kNone = absl::string_view::npos;

// A letter that has case, or any other of a script's: what str.title takes for part of a word.
bool IsLetter(char32_t c) { return ToLower(c) != c || ToUpper(c) != c; }

}  // namespace

absl::StatusOr<Value> Strip(Context& context, const Value& text, const Value* chars, bool left,
                            bool right) {
  const bool has_chars = chars != nullptr && !chars->is(Kind::kNone);
  if (has_chars && !chars->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the characters to strip must be a string, not ", chars->TypeName()));
  }
  context.Work(text.bytes().size());
  absl::string_view set;
  if (has_chars) {
    set = chars->bytes();
    context.Work(4 * set.size());
  }
  const auto [begin, end] = StripRange(text.bytes(), has_chars ? &set : nullptr, left, right);
  return context.NewString(text.AsString().Slice(begin, end));
}

absl::StatusOr<Value> ReplaceText(Context& context, const Value& text, const Value& from,
                                  const Value& to, int64_t count) {
  const absl::string_view bytes = text.bytes();
  const absl::string_view needle = from.bytes();
  context.Work(bytes.size());
  MarkedString result;
  size_t done = 0;  // bytes of `text` taken over
  size_t search = 0;
  for (int64_t left = count; left != 0; --left) {
    const size_t hit = FindBytes(bytes, needle, search);
    if (hit == kNone) {
      break;
    }
    SHOAL_RETURN_IF_ERROR(context.Step());
    SHOAL_RETURN_IF_ERROR(context.Reserve(result.size() + (hit - done) + to.bytes().size()));
    result.AppendRange(text.AsString(), done, hit);
    result.Append(to.AsString());
    done = hit + needle.size();
    search = done;
    if (needle.empty()) {
      if (search == bytes.size()) {
        break;
      }
      DecodeCodePoint(bytes, &search);
    }
  }
  SHOAL_RETURN_IF_ERROR(context.Reserve(result.size() + (bytes.size() - done)));
  result.AppendRange(text.AsString(), done, bytes.size());
  return context.NewString(std::move(result));
}

absl::StatusOr<Value> JoinText(Context& context, const Value& separator,
                               absl::Span<const Value> items) {
  MarkedString result;
  for (size_t i = 0; i < items.size(); ++i) {
    SHOAL_RETURN_IF_ERROR(context.Step());
    SHOAL_ASSIGN_OR_RETURN(const Value text, ToStringValue(context, items[i]));
    SHOAL_RETURN_IF_ERROR(
        context.Reserve(result.size() + separator.bytes().size() + text.bytes().size()));
    if (i > 0) {
      result.Append(separator.AsString());
    }
    result.Append(text.AsString());
  }
  return context.NewString(std::move(result));
}

std::string Capitalize(absl::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const bool first = pos == 0;
    const char32_t c = DecodeCodePoint(text, &pos);
    AppendCodePoint(first ? ToUpper(c) : ToLower(c), &out);
  }
  return out;
}

std::string Title(absl::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = DecodeCodePoint(text, &pos);
    AppendCodePoint(in_word ? ToLower(c) : ToUpper(c), &out);
    in_word = IsLetter(c);
  }
  return out;
}

std::vector<absl::string_view> SplitLines(absl::string_view text, bool keep_ends) {
  std::vector<absl::string_view> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    const char32_t c = DecodeCodePoint(text, &pos);
    if (!IsLineBreak(c)) {
      continue;
    }
    if (c == '\r' && pos < text.size() && text[pos] == '\n') {
      ++pos;
    }
    lines.push_back(text.substr(begin, (keep_ends ? pos : at) - begin));
    begin = pos;
  }
  if (begin < text.size()) {
    lines.push_back(text.substr(begin));
  }
  return lines;
}

absl::StatusOr<int64_t> IntArgument(const Value* value, absl::string_view name, int64_t otherwise) {
  if (value == nullptr) {
    return otherwise;
  }
  if (!value->is_integral()) {
    return NotAWholeNumber(name, *value);
  }
  return value->AsInt();
}

absl::StatusOr<absl::string_view> StringArgument(const Value* value, absl::string_view name,
                                                 absl::string_view otherwise) {
  if (value == nullptr) {
    return otherwise;
  }
  if (!value->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be a string, not ", value->TypeName()));
  }
  return value->bytes();
}

bool BoolArgument(const Value* value, bool otherwise) {
  return value == nullptr ? otherwise : value->IsTrue();
}

}  // namespace shoal::text::jinja
