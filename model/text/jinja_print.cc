#include "model/text/jinja_print.h"

#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "model/text/jinja_unicode.h"

namespace shoal::text::jinja {
namespace {

void AppendStringRepr(absl::string_view s, std::string* out) {
  const bool has_single = s.find('\'') != absl::string_view::npos;
  const bool has_double = s.find('"') != absl::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out->push_back(quote);
  for (size_t pos = 0; pos < s.size();) {
    const char32_t c = DecodeCodePoint(s, &pos);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (IsPrintable(c)) {
      AppendCodePoint(c, out);
    } else if (c < 0x100) {
      absl::StrAppendFormat(out, "\\x%02x", static_cast<unsigned>(c));
    } else if (c < 0x10000) {
      absl::StrAppendFormat(out, "\\u%04x", static_cast<unsigned>(c));
    } else {
      absl::StrAppendFormat(out, "\\U%08x", static_cast<unsigned>(c));
    }
  }
  out->push_back(quote);
}

absl::Status AppendItems(Context& context, const Value& value, std::string* out) {
  const bool is_tuple = value.is(Kind::kTuple);
  out->push_back(is_tuple ? '(' : '[');
  bool first = true;
  for (const Value& item : value.items()) {
    if (!first) {
      out->append(", ");
    }
    first = false;
    SHOAL_RETURN_IF_ERROR(AppendRepr(context, item, out));
  }
  if (is_tuple && value.items().size() == 1) {
    out->push_back(',');
  }
  out->push_back(is_tuple ? ')' : ']');
  return absl::OkStatus();
}

absl::Status AppendDict(Context& context, const Dict& dict, std::string* out) {
  out->push_back('{');
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) {
      out->append(", ");
    }
    first = false;
    SHOAL_RETURN_IF_ERROR(AppendRepr(context, key, out));
    out->append(": ");
    SHOAL_RETURN_IF_ERROR(AppendRepr(context, value, out));
  }
  out->push_back('}');
  return absl::OkStatus();
}

absl::Status AppendOther(Context& context, const Value& value, std::string* out) {
  switch (value.kind()) {
    case Kind::kNone:
      out->append("None");
      break;
    case Kind::kBool:
      out->append(value.AsBool() ? "True" : "False");
      break;
    case Kind::kInt:
      absl::StrAppend(out, value.AsInt());
      break;
    case Kind::kFloat:
      out->append(FormatFloat(value.AsDouble()));
      break;
    case Kind::kList:
    case Kind::kTuple:
      return AppendItems(context, value, out);
    case Kind::kDict:
      return AppendDict(context, value.AsDict(), out);
    case Kind::kNamespace:
      out->append("<Namespace ");
      SHOAL_RETURN_IF_ERROR(AppendDict(context, value.AsNamespace().attributes, out));
      out->push_back('>');
      break;
    case Kind::kLoop:
      absl::StrAppend(out, "<LoopContext ", value.AsLoop().index0 + 1, "/",
                      value.AsLoop().items.size(), ">");
      break;
    case Kind::kFunction:
      out->append("<function>");
      break;
    case Kind::kUndefined:
    case Kind::kString:
      break;  // the callers' own
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AppendStr(Context& context, const Value& value, std::string* out) {
  if (value.is_undefined()) {
    return absl::OkStatus();
  }
  if (value.is_string()) {
    SHOAL_RETURN_IF_ERROR(context.Reserve(out->size() + value.bytes().size()));
    out->append(value.bytes().data(), value.bytes().size());
    return absl::OkStatus();
  }
  return AppendRepr(context, value, out);
}

absl::Status AppendRepr(Context& context, const Value& value, std::string* out) {
  Nesting nesting(context);
  SHOAL_RETURN_IF_ERROR(nesting.Check());
  if (value.is_undefined()) {
    out->append("Undefined");
  } else if (value.is_string()) {
    SHOAL_RETURN_IF_ERROR(context.Reserve(out->size() + value.bytes().size()));
    AppendStringRepr(value.bytes(), out);
  } else {
    SHOAL_RETURN_IF_ERROR(AppendOther(context, value, out));
  }
  return context.CheckOutput(out->size());
}

absl::StatusOr<Value> ToStringValue(Context& context, const Value& value) {
  if (value.is_string()) {
    return value;
  }
  std::string text;
  SHOAL_RETURN_IF_ERROR(AppendStr(context, value, &text));
  return context.NewUserString(text);
}

std::string FormatFloat(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value < 0 ? "-inf" : "inf";
  }
  char buffer[32];  // -d.ddde-308: at most 17 digits
  auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const absl::string_view text(buffer, end.ptr - buffer);
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t digits_begin = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + digits_begin, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    return std::string(text);  // Python writes the exponent with two digits too
  }
  const absl::string_view sign = text[0] == '-' ? "-" : "";
  std::string digits;
  for (char c : text.substr(sign.size(), e - sign.size())) {
    if (c != '.') {
      digits.push_back(c);
    }
  }
  if (exponent < 0) {
    return absl::StrCat(sign, "0.", std::string(-exponent - 1, '0'), digits);
  }
  const size_t whole = exponent + 1;
  if (digits.size() <= whole) {
    return absl::StrCat(sign, digits, std::string(whole - digits.size(), '0'), ".0");
  }
  return absl::StrCat(sign, digits.substr(0, whole), ".", digits.substr(whole));
}

}  // namespace shoal::text::jinja
