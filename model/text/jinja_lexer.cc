#include "model/text/jinja_lexer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "model/text/jinja_unicode.h"

namespace shoal::text::jinja {
namespace {

constexpr size_t kNone = absl::string_view::npos;

bool IsNameStart(char c) {
  return absl::ascii_isalpha(c) || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

bool IsNameChar(char c) { return IsNameStart(c) || absl::ascii_isdigit(c); }

class Lexer {
 public:
  explicit Lexer(std::string source) : storage_(std::move(source)), source_(storage_) {}

  absl::StatusOr<std::vector<Token>> Run();

 private:
  bool LooksAt(absl::string_view what) const { return source_.substr(pos_, what.size()) == what; }
  char Peek(size_t ahead = 0) const {
    return pos_ + ahead < source_.size() ? source_[pos_ + ahead] : '\0';
  }
  void AdvanceTo(size_t pos);
  void SkipSpace();
  void Emit(TokenKind kind, absl::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }

  void EmitText(size_t begin, size_t end, char kind, char sign);
  bool SkipBlockEnd(absl::string_view delimiter);
  absl::Status SkipComment();
  absl::StatusOr<bool> TakeRaw();
  absl::Status TakeTag(bool is_block);
  absl::StatusOr<bool> TakeTagEnd(bool is_block);
  absl::Status TakeTagToken();
  absl::Status TakeString();
  absl::Status AppendEscape(std::string* out);
  absl::StatusOr<char32_t> TakeDigits(int base, size_t min_digits, size_t max_digits);
  void TakeNumber();
  absl::Status TakeOperator();

  const std::string storage_;
  const absl::string_view source_;
  size_t pos_ = 0;
  int line_ = 1;
  std::string brackets_;  // closing brackets still expected
  std::vector<Token> tokens_;
};

void Lexer::AdvanceTo(size_t pos) {
  line_ += std::count(source_.begin() + pos_, source_.begin() + pos, '\n');
  pos_ = pos;
}

void Lexer::SkipSpace() {
  size_t pos = pos_;
  while (pos < source_.size()) {
    size_t next = pos;
    if (!IsSpace(DecodeCodePoint(source_, &next))) {
      break;
    }
    pos = next;
  }
  AdvanceTo(pos);
}

// Emits the text before a tag. `kind` is the second character of the tag's delimiter.
void Lexer::EmitText(size_t begin, size_t end, char kind, char sign) {
  absl::string_view text = source_.substr(begin, end - begin);
  if (sign == '-') {
    text = text.substr(0, StripRange(text, nullptr, false, true).second);
  } else if (sign != '+' && kind != '{') {  // lstrip_blocks
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == kNone ? 0 : newline + 1;
    const bool starts_line = line_begin > 0 || begin == 0 || source_[begin - 1] == '\n';
    const absl::string_view indent = text.substr(line_begin);
    if (starts_line && StripRange(indent, nullptr, true, false).first == indent.size()) {
      text = text.substr(0, line_begin);
    }
  }
  if (!text.empty()) {
    Emit(TokenKind::kText, text);
  }
}

// Skips `%}` or `#}` with its sign and the white space that it takes along; false if not there.
bool Lexer::SkipBlockEnd(absl::string_view delimiter) {
  const char sign = Peek();
  const size_t at = pos_ + ((sign == '-' || sign == '+') ? 1 : 0);
  if (source_.substr(at, 2) != delimiter) {
    return false;
  }
  AdvanceTo(at + 2);
  if (sign == '-') {
    SkipSpace();
  } else if (sign != '+' && Peek() == '\n') {  // trim_blocks
    AdvanceTo(pos_ + 1);
  }
  return true;
}

absl::Status Lexer::SkipComment() {
  const int begin_line = line_;
  const size_t end = source_.find("#}", pos_);
  if (end == kNone) {
    return SyntaxError(begin_line, "comment is not closed with '#}'");
  }
  const bool has_sign = end > pos_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
  AdvanceTo(has_sign ? end - 1 : end);
  SkipBlockEnd("#}");
  return absl::OkStatus();
}

// At the inside of a `{%`: takes a whole raw block if this is one.
absl::StatusOr<bool> Lexer::TakeRaw() {
  const size_t pos = pos_;
  const int line = line_;
  SkipSpace();
  bool is_raw = LooksAt("raw");
  if (is_raw) {
    AdvanceTo(pos_ + 3);
    SkipSpace();
    is_raw = LooksAt("%}") || LooksAt("-%}");
  }
  if (!is_raw) {
    pos_ = pos;
    line_ = line;
    return false;
  }
  const bool strip = Peek() == '-';
  AdvanceTo(pos_ + (strip ? 3 : 2));
  if (strip) {
    SkipSpace();
  }
  const size_t begin = pos_;
  for (size_t open = source_.find("{%", begin); open != kNone;
       open = source_.find("{%", open + 2)) {
    AdvanceTo(open + 2);
    const char sign = Peek();
    if (sign == '-' || sign == '+') {
      AdvanceTo(pos_ + 1);
    }
    SkipSpace();
    if (!LooksAt("endraw")) {
      continue;
    }
    AdvanceTo(pos_ + 6);
    SkipSpace();
    if (SkipBlockEnd("%}")) {
      EmitText(begin, open, '%', sign);
      return true;
    }
  }
  return SyntaxError(line, "raw block is not closed with '{% endraw %}'");
}

absl::StatusOr<std::vector<Token>> Lexer::Run() {
  while (true) {
    size_t open = pos_;
    for (; (open = source_.find('{', open)) != kNone; ++open) {
      const char next = open + 1 < source_.size() ? source_[open + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') {
        break;
      }
    }
    if (open == kNone) {
      if (pos_ < source_.size()) {
        Emit(TokenKind::kText, source_.substr(pos_));
      }
      AdvanceTo(source_.size());
      Emit(TokenKind::kEnd, "");
      return std::move(tokens_);
    }
    const char kind = source_[open + 1];
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    EmitText(pos_, open, kind, sign);
    AdvanceTo(open + ((sign == '-' || sign == '+') ? 3 : 2));
    if (kind == '#') {
      SHOAL_RETURN_IF_ERROR(SkipComment());
      continue;
    }
    if (kind == '%') {
      SHOAL_ASSIGN_OR_RETURN(bool was_raw, TakeRaw());
      if (was_raw) {
        continue;
      }
    }
    SHOAL_RETURN_IF_ERROR(TakeTag(kind == '%'));
  }
}

absl::Status Lexer::TakeTag(bool is_block) {
  const int begin_line = line_;
  Emit(is_block ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "");
  while (true) {
    SHOAL_ASSIGN_OR_RETURN(bool ended, TakeTagEnd(is_block));
    if (ended) {
      return absl::OkStatus();
    }
    SkipSpace();
    if (pos_ == source_.size()) {
      return SyntaxError(begin_line,
                         absl::StrCat("tag is not closed with '", is_block ? "%}" : "}}", "'"));
    }
    SHOAL_ASSIGN_OR_RETURN(ended, TakeTagEnd(is_block));
    if (ended) {
      return absl::OkStatus();
    }
    SHOAL_RETURN_IF_ERROR(TakeTagToken());
  }
}

absl::StatusOr<bool> Lexer::TakeTagEnd(bool is_block) {
  if (!brackets_.empty()) {
    return false;  // `}}` inside of brackets closes brackets
  }
  const int line = line_;
  bool ended = false;
  if (is_block) {
    ended = SkipBlockEnd("%}");
  } else if (LooksAt("-}}")) {
    AdvanceTo(pos_ + 3);
    SkipSpace();
    ended = true;
  } else if (LooksAt("}}")) {
    AdvanceTo(pos_ + 2);
    ended = true;
  }
  if (ended) {
    tokens_.push_back({is_block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "", line});
  }
  return ended;
}

absl::Status Lexer::TakeTagToken() {
  const char c = Peek();
  if (c == '\'' || c == '"') {
    return TakeString();
  }
  if (absl::ascii_isdigit(c)) {
    TakeNumber();
    return absl::OkStatus();
  }
  if (IsNameStart(c)) {
    size_t end = pos_;
    while (end < source_.size() && IsNameChar(source_[end])) {
      ++end;
    }
    Emit(TokenKind::kName, source_.substr(pos_, end - pos_));
    AdvanceTo(end);
    return absl::OkStatus();
  }
  return TakeOperator();
}

absl::Status Lexer::TakeString() {
  const int begin_line = line_;
  const char quote = Peek();
  std::string value;
  AdvanceTo(pos_ + 1);
  while (pos_ < source_.size() && Peek() != quote) {
    if (Peek() == '\\') {
      SHOAL_RETURN_IF_ERROR(AppendEscape(&value));
    } else {
      value.push_back(Peek());
      AdvanceTo(pos_ + 1);
    }
  }
  if (pos_ == source_.size()) {
    return SyntaxError(begin_line, "string is not closed");
  }
  AdvanceTo(pos_ + 1);
  tokens_.push_back({TokenKind::kString, std::move(value), begin_line});
  return absl::OkStatus();
}

// Python's escapes, \N{...} aside; an unknown one stands for itself.
absl::Status Lexer::AppendEscape(std::string* out) {
  constexpr absl::string_view kNames = "\\'\"abfnrtv";
  constexpr absl::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
  const char c = Peek(1);
  const size_t simple = c == '\0' ? kNone : kNames.find(c);
  if (simple != kNone) {
    out->push_back(kValues[simple]);
    AdvanceTo(pos_ + 2);
    return absl::OkStatus();
  }
  if (c == '\n') {
    AdvanceTo(pos_ + 2);
    return absl::OkStatus();
  }
  size_t num_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (num_digits > 0) {
    AdvanceTo(pos_ + 2);
    SHOAL_ASSIGN_OR_RETURN(char32_t value, TakeDigits(16, num_digits, num_digits));
    AppendCodePoint(value, out);
    return absl::OkStatus();
  }
  AdvanceTo(pos_ + 1);
  if (c >= '0' && c <= '7') {
    SHOAL_ASSIGN_OR_RETURN(char32_t value, TakeDigits(8, 1, 3));
    AppendCodePoint(value, out);
    return absl::OkStatus();
  }
  out->push_back('\\');
  return absl::OkStatus();
}

absl::StatusOr<char32_t> Lexer::TakeDigits(int base, size_t min_digits, size_t max_digits) {
  char32_t value = 0;
  size_t count = 0;
  for (; count < max_digits; ++count) {
    const char c = absl::ascii_tolower(Peek());
    const int digit = absl::ascii_isdigit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
    if (digit >= base) {
      break;
    }
    value = value * base + digit;
    AdvanceTo(pos_ + 1);
  }
  if (count < min_digits || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
    return SyntaxError(line_, "string has an escape that is no Unicode character");
  }
  return value;
}

void Lexer::TakeNumber() {
  auto skip_digits = [this](size_t at, bool hex) {
    while (at < source_.size() &&
           ((hex ? absl::ascii_isxdigit(source_[at]) : absl::ascii_isdigit(source_[at])) ||
            (source_[at] == '_' && at + 1 < source_.size() &&
             absl::ascii_isxdigit(source_[at + 1])))) {
      ++at;
    }
    return at;
  };
  const char second = absl::ascii_tolower(Peek(1));
  size_t end;
  bool is_float = false;
  if (Peek() == '0' && (second == 'x' || second == 'o' || second == 'b')) {
    end = skip_digits(pos_ + 2, second == 'x');
  } else {
    end = skip_digits(pos_, false);
    auto is_digit = [this](size_t at) {
      return at < source_.size() && absl::ascii_isdigit(source_[at]);
    };
    const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';  // x.0.1: two subscripts
    if (!after_dot && end < source_.size() && source_[end] == '.' && is_digit(end + 1)) {
      end = skip_digits(end + 1, false);
      is_float = true;
    }
    if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      if (is_digit(exponent)) {
        end = skip_digits(exponent, false);
        is_float = true;
      }
    }
  }
  Emit(is_float ? TokenKind::kFloat : TokenKind::kInteger,
       absl::StrReplaceAll(source_.substr(pos_, end - pos_), {{"_", ""}}));
  AdvanceTo(end);
}

absl::Status Lexer::TakeOperator() {
  constexpr absl::string_view kLong[] = {"**", "//", "==", "!=", ">=", "<="};
  constexpr absl::string_view kShort = "+-/*%~[](){}><=.:|,";
  absl::string_view op;
  for (absl::string_view candidate : kLong) {
    if (LooksAt(candidate)) {
      op = candidate;
    }
  }
  if (op.empty() && Peek() != '\0' && kShort.find(Peek()) != kNone) {
    op = source_.substr(pos_, 1);
  }
  if (op.empty()) {
    return SyntaxError(line_, absl::StrCat("unexpected character '", source_.substr(pos_, 1), "'"));
  }
  const char c = op[0];
  if (c == '(' || c == '[' || c == '{') {
    brackets_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
  } else if (c == ')' || c == ']' || c == '}') {
    if (brackets_.empty() || brackets_.back() != c) {
      return SyntaxError(line_, absl::StrCat("unexpected '", op, "'"));
    }
    brackets_.pop_back();
  }
  Emit(TokenKind::kOperator, op);
  AdvanceTo(pos_ + op.size());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  std::string normal = absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
  if (!normal.empty() && normal.back() == '\n') {
    normal.pop_back();
  }
  return Lexer(std::move(normal)).Run();
}

absl::Status SyntaxError(int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("chat template, line ", line, ": ", what));
}

}  // namespace shoal::text::jinja
