#include "model/text/jinja_filters.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_json.h"
#include "model/text/jinja_print.h"
#include "model/text/jinja_text.h"
#include "model/text/jinja_unicode.h"

namespace shoal::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Result Default(Context& context, const Value& input, const Arguments& args) {
  const bool replace =
      input.is_undefined() || (BoolArgument(args.Get(1), false) && !input.IsTrue());
  if (!replace) {
    return input;
  }
  return args.Get(0) != nullptr ? *args.Get(0) : context.NewUserString("");
}

Result Identity(Context& context, const Value& input, const Arguments& args) {
  return ToStringValue(context, input);
}

Result Lower(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const Value text, ToStringValue(context, input));
  return context.NewUserString(ToLower(text.bytes()));
}

Result Upper(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const Value text, ToStringValue(context, input));
  return context.NewUserString(ToUpper(text.bytes()));
}

Result CapitalizeFilter(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const Value text, ToStringValue(context, input));
  return context.NewUserString(Capitalize(text.bytes()));
}

// Unlike str.title, jinja2's filter begins words only after white space, hyphens and brackets.
Result TitleFilter(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const Value text, ToStringValue(context, input));
  std::string out;
  bool begins = true;
  for (size_t pos = 0; pos < text.bytes().size();) {
    const char32_t c = DecodeCodePoint(text.bytes(), &pos);
    AppendCodePoint(begins ? ToUpper(c) : ToLower(c), &out);
    begins = IsSpace(c) || (c < 0x80 && absl::StrContains("-({[<", std::string(1, char(c))));
  }
  return context.NewUserString(out);
}

Result Trim(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const Value text, ToStringValue(context, input));
  return Strip(context, text, args.Get(0), true, true);
}

Result Replace(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const Value text, ToStringValue(context, input));
  SHOAL_ASSIGN_OR_RETURN(const Value from, ToStringValue(context, *args.Get(0)));
  SHOAL_ASSIGN_OR_RETURN(const Value to, ToStringValue(context, *args.Get(1)));
  const bool all = args.Get(2) == nullptr || args.Get(2)->is(Kind::kNone);
  SHOAL_ASSIGN_OR_RETURN(const int64_t count,
                         IntArgument(all ? nullptr : args.Get(2), "count", -1));
  return ReplaceText(context, text, from, to, count);
}

Result Indent(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const Value text, ToStringValue(context, input));
  std::string indent;
  if (args.Get(0) != nullptr && args.Get(0)->is_string()) {
    indent = std::string(args.Get(0)->bytes());
  } else {
    SHOAL_ASSIGN_OR_RETURN(const int64_t width, IntArgument(args.Get(0), "width", 4));
    SHOAL_RETURN_IF_ERROR(context.CheckOutput(width < 0 ? 0 : width));
    indent.assign(width < 0 ? 0 : width, ' ');
  }
  const bool first = BoolArgument(args.Get(1), false);
  const bool blank = BoolArgument(args.Get(2), false);
  const std::string padded = absl::StrCat(text.bytes(), "\n");  // an empty text is one line too
  std::string out = first ? indent : "";
  bool is_first = true;
  for (absl::string_view line : SplitLines(padded, false)) {
    SHOAL_RETURN_IF_ERROR(context.Step());
    SHOAL_RETURN_IF_ERROR(context.Reserve(out.size() + 1 + indent.size() + line.size()));
    if (!is_first) {
      absl::StrAppend(&out, "\n", !line.empty() || blank ? indent : "");
    }
    is_first = false;
    absl::StrAppend(&out, line);
  }
  return context.NewUserString(out);
}

Result ToJson(Context& context, const Value& input, const Arguments& args) {
  JsonStyle style;
  style.ensure_ascii = BoolArgument(args.Get(0), false);
  style.sort_keys = BoolArgument(args.Get(3), false);
  const Value* indent = args.Get(1);
  style.pretty = indent != nullptr && !indent->is(Kind::kNone);
  style.item_separator = style.pretty ? "," : ", ";
  if (style.pretty && indent->is_string()) {
    style.indent = std::string(indent->bytes());
  } else if (style.pretty) {
    SHOAL_ASSIGN_OR_RETURN(const int64_t width, IntArgument(indent, "indent", 0));
    SHOAL_RETURN_IF_ERROR(context.CheckOutput(width < 0 ? 0 : width));
    style.indent.assign(width < 0 ? 0 : width, ' ');
  }
  if (const Value* separators = args.Get(2); separators != nullptr && separators->IsTrue()) {
    if (!separators->is_sequence() || separators->items().size() != 2 ||
        !separators->items()[0].is_string() || !separators->items()[1].is_string()) {
      return absl::InvalidArgumentError("separators of tojson must be two strings");
    }
    style.item_separator = std::string(separators->items()[0].bytes());
    style.key_separator = std::string(separators->items()[1].bytes());
  }
  std::string out;
  SHOAL_RETURN_IF_ERROR(AppendJson(context, input, style, &out));
  return context.NewUserString(out);
}

Result FromJson(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const absl::string_view text,
                         StringArgument(&input, "from_json's input", ""));
  return ParseJson(context, text);
}

// Python's int(text, base); false if it is none, or beyond 64 bits.
bool ParseInt(absl::string_view text, int64_t base, int64_t* value) {
  std::string digits = absl::StrReplaceAll(absl::StripAsciiWhitespace(text), {{"_", ""}});
  absl::string_view rest = digits;
  const bool negative = absl::ConsumePrefix(&rest, "-");
  if (!negative) {
    absl::ConsumePrefix(&rest, "+");
  }
  const absl::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
  if (!prefix.empty() && absl::StartsWithIgnoreCase(rest, prefix)) {
    rest.remove_prefix(2);
  }
  if (rest.empty() || rest[0] == '-' || base < 2 || base > 36) {
    return false;
  }
  const std::string sign_and_digits = absl::StrCat(negative ? "-" : "", rest);
  const char* end = sign_and_digits.data() + sign_and_digits.size();
  const auto parsed = std::from_chars(sign_and_digits.data(), end, *value, static_cast<int>(base));
  return parsed.ec == std::errc() && parsed.ptr == end;
}

bool FloatToInt(double value, int64_t* result) {
  if (!(value > -9.2e18 && value < 9.2e18)) {  // NaN too
    return false;
  }
  *result = static_cast<int64_t>(value);
  return true;
}

Result ToInt(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const int64_t base, IntArgument(args.Get(1), "base", 10));
  if (input.is_undefined()) {
    return absl::InvalidArgumentError(input.WhyUndefined());
  }
  int64_t result = 0;
  double number = 0;
  bool ok = false;
  if (input.is_integral()) {
    result = input.AsInt();
    ok = true;
  } else if (input.is(Kind::kFloat)) {
    ok = FloatToInt(input.AsDouble(), &result);
  } else if (input.is_string()) {
    ok = ParseInt(input.bytes(), base, &result) ||
         (absl::SimpleAtod(input.bytes(), &number) && FloatToInt(number, &result));
  }
  return ok ? Value::Int(result) : args.Get(0) != nullptr ? *args.Get(0) : Value::Int(0);
}

Result ToFloat(Context& context, const Value& input, const Arguments& args) {
  if (input.is_undefined()) {
    return absl::InvalidArgumentError(input.WhyUndefined());
  }
  double number = 0;
  if (input.is_number()) {
    return Value::Float(input.AsDouble());
  }
  if (input.is_string() && absl::SimpleAtod(input.bytes(), &number)) {
    return Value::Float(number);
  }
  return args.Get(0) != nullptr ? *args.Get(0) : Value::Float(0);
}

Result Abs(Context& context, const Value& input, const Arguments& args) {
  if (input.is(Kind::kFloat)) {
    return Value::Float(std::fabs(input.AsDouble()));
  }
  if (!input.is_integral() || input.AsInt() == std::numeric_limits<int64_t>::min()) {
    return absl::InvalidArgumentError(absl::StrCat("abs does not take ", input.TypeName()));
  }
  return Value::Int(input.AsInt() < 0 ? -input.AsInt() : input.AsInt());
}

// precision 0..15; method "common" (half to even, as Python's round), "ceil" or "floor".
Result Round(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const int64_t precision, IntArgument(args.Get(0), "precision", 0));
  SHOAL_ASSIGN_OR_RETURN(const absl::string_view method,
                         StringArgument(args.Get(1), "method", "common"));
  if (!input.is_number()) {
    return absl::InvalidArgumentError(absl::StrCat("round does not take ", input.TypeName()));
  }
  if (precision < 0 || precision > 15) {
    return absl::InvalidArgumentError(
        absl::StrCat("precision of round is ", precision, " (limit 0 to 15)"));
  }
  const double scale = std::pow(10.0, precision);
  if (method == "ceil") {
    return Value::Float(std::ceil(input.AsDouble() * scale) / scale);
  }
  if (method == "floor") {
    return Value::Float(std::floor(input.AsDouble() * scale) / scale);
  }
  if (method != "common") {
    return absl::InvalidArgumentError(
        absl::StrCat("method of round is '", method, "', not common, ceil or floor"));
  }
  if (input.is_integral()) {
    return Value::Int(input.AsInt());
  }
  // Decimal rounding of the exact binary value, which scaling by 10^n would not be.
  char buffer[400];  // 309 digits before the point
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), input.AsDouble(),
                                 std::chars_format::fixed, static_cast<int>(precision));
  double rounded = 0;
  std::from_chars(buffer, end.ptr, rounded);
  return Value::Float(rounded);
}

constexpr Native kFilters[] = {
    {"abs", &Abs},
    {"capitalize", &CapitalizeFilter},
    {"d", &Default, {"default_value", "boolean"}},
    {"default", &Default, {"default_value", "boolean"}},
    {"float", &ToFloat, {"default"}},
    {"from_json", &FromJson},
    {"indent", &Indent, {"width", "first", "blank"}},
    {"int", &ToInt, {"default", "base"}},
    {"lower", &Lower},
    {"replace", &Replace, {"old", "new", "count"}, 2},
    {"round", &Round, {"precision", "method"}},
    {"safe", &Identity},
    {"string", &Identity},
    {"title", &TitleFilter},
    {"tojson", &ToJson, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", &Trim, {"chars"}},
    {"upper", &Upper},
};

}  // namespace

absl::Span<const Native> ValueFilters() { return kFilters; }

const Native* FindFilter(absl::string_view name) {
  const Native* found = FindIn(ValueFilters(), name);
  return found != nullptr ? found : FindIn(SequenceFilters(), name);
}

}  // namespace shoal::text::jinja
