#include "model/text/jinja_operators.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/text/jinja_unicode.h"

namespace shoal::text::jinja {
namespace {

absl::Status Undefined(const Value& value) {
  return absl::InvalidArgumentError(value.WhyUndefined());
}

absl::Status BadOperands(absl::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined() || b.is_undefined()) {
    return Undefined(a.is_undefined() ? a : b);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("operator ", op, " does not take ", a.TypeName(), " and ", b.TypeName()));
}

absl::Status Overflow(absl::string_view op, int64_t a, int64_t b) {
  return absl::InvalidArgumentError(
      absl::StrCat(a, " ", op, " ", b, " is beyond the limit of 64-bit integers"));
}

absl::Status ZeroDivisor(absl::string_view op) {
  return absl::InvalidArgumentError(absl::StrCat("operator ", op, " divides by zero"));
}

absl::StatusOr<Value> IntPower(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    return base == 0 ? absl::StatusOr<Value>(ZeroDivisor("**"))
                     : Value::Float(std::pow(static_cast<double>(base), exponent));
  }
  int64_t result = 1;
  int64_t square = base;
  for (int64_t left = exponent; left > 0; left /= 2) {
    if (left % 2 == 1 && __builtin_mul_overflow(result, square, &result)) {
      return Overflow("**", base, exponent);
    }
    if (left > 1 && __builtin_mul_overflow(square, square, &square)) {
      return Overflow("**", base, exponent);
    }
  }
  return Value::Int(result);
}

absl::StatusOr<Value> IntArithmetic(absl::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "**") {
    return IntPower(a, b);
  }
  if (op == "+" || op == "-" || op == "*") {
    const bool overflow = op == "+"   ? __builtin_add_overflow(a, b, &result)
                          : op == "-" ? __builtin_sub_overflow(a, b, &result)
                                      : __builtin_mul_overflow(a, b, &result);
    return overflow ? absl::StatusOr<Value>(Overflow(op, a, b)) : Value::Int(result);
  }
  if (b == 0) {
    return ZeroDivisor(op);
  }
  if (op == "/") {
    return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  }
  if (b == -1) {  // INT64_MIN // -1 has no result
    return op == "%" ? Value::Int(0)
           : __builtin_sub_overflow(int64_t{0}, a, &result)
               ? absl::StatusOr<Value>(Overflow(op, a, b))
               : Value::Int(result);
  }
  const bool adjust = a % b != 0 && (a < 0) != (b < 0);  // towards minus infinity
  return op == "//" ? Value::Int(a / b - adjust) : Value::Int(a % b + (adjust ? b : 0));
}

absl::StatusOr<Value> FloatArithmetic(absl::string_view op, double a, double b) {
  if (op == "+") {
    return Value::Float(a + b);
  }
  if (op == "-") {
    return Value::Float(a - b);
  }
  if (op == "*") {
    return Value::Float(a * b);
  }
  if (op == "**") {
    if (a == 0 && b < 0) {
      return ZeroDivisor(op);
    }
    const double power = std::pow(a, b);
    if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) {
      return absl::InvalidArgumentError(absl::StrCat(a, " ** ", b, " is no real number"));
    }
    return Value::Float(power);
  }
  if (b == 0) {
    return ZeroDivisor(op);
  }
  if (op == "/") {
    return Value::Float(a / b);
  }
  double mod = std::fmod(a, b);
  double quotient = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) {
    mod += b;
    quotient -= 1;
  }
  if (op == "%") {
    return Value::Float(mod == 0 ? std::copysign(0.0, b) : mod);
  }
  return Value::Float(std::floor(quotient + 0.5) == quotient ? quotient : std::round(quotient));
}

absl::StatusOr<Value> Join(Context& context, const Value& a, const Value& b) {
  if (a.is_string()) {
    SHOAL_RETURN_IF_ERROR(context.Reserve(a.bytes().size() + b.bytes().size()));
    MarkedString result = a.AsString();
    result.Append(b.AsString());
    return context.NewString(std::move(result));
  }
  SHOAL_RETURN_IF_ERROR(context.Reserve((a.items().size() + b.items().size()) * sizeof(Value)));
  std::vector<Value> items(a.items().begin(), a.items().end());
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.is(Kind::kList) ? context.NewList(std::move(items)) : context.NewTuple(std::move(items));
}

absl::StatusOr<Value> Repeat(Context& context, const Value& value, int64_t times) {
  const size_t unit =
      value.is_string() ? value.bytes().size() : value.items().size() * sizeof(Value);
  const size_t count = unit == 0 || times < 0 ? 0 : static_cast<size_t>(times);
  if (count > 0 && unit > context.limits().max_output_bytes / count) {
    SHOAL_RETURN_IF_ERROR(context.CheckOutput(context.limits().max_output_bytes + 1));
  }
  SHOAL_RETURN_IF_ERROR(context.Reserve(unit * count));
  if (value.is_string()) {
    MarkedString result;
    for (size_t i = 0; i < count; ++i) {
      result.Append(value.AsString());
    }
    return context.NewString(std::move(result));
  }
  std::vector<Value> items;
  for (size_t i = 0; i < count; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return value.is(Kind::kList) ? context.NewList(std::move(items))
                               : context.NewTuple(std::move(items));
}

// Like Python's, exact also where a 64-bit integer does not fit a double. `less` and `equal` are
// both false if one is NaN.
struct Order {
  bool less;
  bool equal;
};

Order CompareNumbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    return {a.AsInt() < b.AsInt(), a.AsInt() == b.AsInt()};
  }
  // long double holds every int64 and double exactly (64 bits of mantissa or more).
  const auto wide = [](const Value& v) {
    return v.is(Kind::kFloat) ? static_cast<long double>(v.AsDouble())
                              : static_cast<long double>(v.AsInt());
  };
  return {wide(a) < wide(b), wide(a) == wide(b)};
}

absl::StatusOr<bool> SequencesEqual(Context& context, absl::Span<const Value> a,
                                    absl::Span<const Value> b) {
  if (a.size() != b.size()) {
    return false;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const bool equal, Equals(context, a[i], b[i]));
    if (!equal) {
      return false;
    }
  }
  return true;
}

bool IsHashable(const Value& key) {
  if (key.is(Kind::kTuple)) {
    return std::all_of(key.items().begin(), key.items().end(), [](const Value& item) {
      return item.is_string() || item.is_number() || item.is(Kind::kNone);
    });
  }
  return !key.is(Kind::kList) && !key.is(Kind::kDict);
}

// Index of an equal key; dict.size() if none.
absl::StatusOr<size_t> FindKey(Context& context, const Dict& dict, const Value& key) {
  if (!IsHashable(key)) {
    return absl::InvalidArgumentError(absl::StrCat(key.TypeName(), " cannot be a key of a dict"));
  }
  size_t i = 0;
  for (; i < dict.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const bool equal, Equals(context, dict.entries()[i].first, key));
    if (equal) {
      break;
    }
  }
  return i;
}

absl::StatusOr<const Value*> FindValue(Context& context, const Dict& dict, const Value& key) {
  if (key.is_string()) {
    return dict.Find(key.bytes());
  }
  SHOAL_ASSIGN_OR_RETURN(const size_t i, FindKey(context, dict, key));
  return i == dict.size() ? nullptr : &dict.entries()[i].second;
}

absl::StatusOr<bool> DictsEqual(Context& context, const Dict& a, const Dict& b) {
  if (a.size() != b.size()) {
    return false;
  }
  for (const auto& [key, value] : a.entries()) {
    SHOAL_ASSIGN_OR_RETURN(const Value* other, FindValue(context, b, key));
    if (other == nullptr) {
      return false;
    }
    SHOAL_ASSIGN_OR_RETURN(const bool equal, Equals(context, value, *other));
    if (!equal) {
      return false;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<Value> Arithmetic(Context& context, absl::string_view op, const Value& a,
                                 const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? IntArithmetic(op, a.AsInt(), b.AsInt())
                                              : FloatArithmetic(op, a.AsDouble(), b.AsDouble());
  }
  const bool same_sequence = a.kind() == b.kind() && (a.is_string() || a.is_sequence());
  if (op == "+" && same_sequence) {
    return Join(context, a, b);
  }
  if (op == "*" && (a.is_string() || a.is_sequence()) && b.is_integral()) {
    return Repeat(context, a, b.AsInt());
  }
  if (op == "*" && (b.is_string() || b.is_sequence()) && a.is_integral()) {
    return Repeat(context, b, a.AsInt());
  }
  return BadOperands(op, a, b);
}

absl::StatusOr<Value> Sign(absl::string_view op, const Value& value) {
  if (value.is_undefined()) {
    return Undefined(value);
  }
  if (!value.is_number()) {
    return absl::InvalidArgumentError(
        absl::StrCat("operator ", op, " does not take ", value.TypeName()));
  }
  if (value.is(Kind::kFloat)) {
    return Value::Float(op == "-" ? -value.AsDouble() : value.AsDouble());
  }
  return op == "-" ? IntArithmetic("-", 0, value.AsInt()) : Value::Int(value.AsInt());
}

absl::StatusOr<bool> Equals(Context& context, const Value& a, const Value& b) {
  Nesting nesting(context);
  SHOAL_RETURN_IF_ERROR(nesting.Check());
  if (a.is_number() && b.is_number()) {
    return CompareNumbers(a, b).equal;
  }
  if (a.kind() != b.kind()) {
    return false;
  }
  if (a.IsSameAs(b)) {
    return true;
  }
  switch (a.kind()) {
    case Kind::kString:
      context.Work(std::min(a.bytes().size(), b.bytes().size()));
      return a.bytes() == b.bytes();
    case Kind::kList:
    case Kind::kTuple:
      return SequencesEqual(context, a.items(), b.items());
    case Kind::kDict:
      return DictsEqual(context, a.AsDict(), b.AsDict());
    default:
      return false;
  }
}

absl::StatusOr<bool> Less(Context& context, const Value& a, const Value& b) {
  Nesting nesting(context);
  SHOAL_RETURN_IF_ERROR(nesting.Check());
  if (a.is_number() && b.is_number()) {
    return CompareNumbers(a, b).less;
  }
  if (a.is_string() && b.is_string()) {
    context.Work(std::min(a.bytes().size(), b.bytes().size()));
    return a.bytes() < b.bytes();  // the order of UTF-8 bytes is that of code points
  }
  if (!a.is_sequence() || a.kind() != b.kind()) {
    return BadOperands("<", a, b);
  }
  for (size_t i = 0; i < a.items().size() && i < b.items().size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const bool equal, Equals(context, a.items()[i], b.items()[i]));
    if (!equal) {
      return Less(context, a.items()[i], b.items()[i]);
    }
  }
  return a.items().size() < b.items().size();
}

absl::StatusOr<bool> Contains(Context& context, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is_string()) {
        return BadOperands("in", item, container);
      }
      context.Work(container.bytes().size());
      return FindBytes(container.bytes(), item.bytes(), 0) != absl::string_view::npos;
    case Kind::kList:
    case Kind::kTuple:
      for (const Value& candidate : container.items()) {
        SHOAL_ASSIGN_OR_RETURN(const bool equal, Equals(context, candidate, item));
        if (equal) {
          return true;
        }
      }
      return false;
    case Kind::kDict: {
      SHOAL_ASSIGN_OR_RETURN(const Value* found, FindValue(context, container.AsDict(), item));
      return found != nullptr;
    }
    default:
      return BadOperands("in", item, container);
  }
}

absl::StatusOr<bool> Compare(Context& context, absl::string_view op, const Value& a,
                             const Value& b) {
  if (op == "==" || op == "!=") {
    SHOAL_ASSIGN_OR_RETURN(const bool equal, Equals(context, a, b));
    return equal == (op == "==");
  }
  if (op == "in" || op == "not in") {
    SHOAL_ASSIGN_OR_RETURN(const bool contains, Contains(context, b, a));
    return contains == (op == "in");
  }
  if (op == "<") {
    return Less(context, a, b);
  }
  if (op == ">") {
    return Less(context, b, a);
  }
  const bool swap = op == ">=";
  SHOAL_ASSIGN_OR_RETURN(const bool less, swap ? Less(context, b, a) : Less(context, a, b));
  return less ? absl::StatusOr<bool>(true) : Equals(context, a, b);
}

absl::Status SetEntry(Context& context, const Value& key, const Value& value, Dict* dict) {
  if (key.is_string()) {
    dict->Set(key, value);
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(const size_t i, FindKey(context, *dict, key));
  if (i < dict->size()) {
    dict->Replace(i, value);
  } else {
    dict->Add(key, value);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Value>> Iterate(Context& context, const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kList:
    case Kind::kTuple:
      context.Work(value.items().size() * sizeof(Value));
      items.assign(value.items().begin(), value.items().end());
      return items;
    case Kind::kDict:
      for (const Dict::Entry& entry : value.AsDict().entries()) {
        items.push_back(entry.first);
      }
      return items;
    case Kind::kString:
      for (size_t pos = 0; pos < value.bytes().size();) {
        SHOAL_RETURN_IF_ERROR(context.Step());
        const size_t begin = pos;
        DecodeCodePoint(value.bytes(), &pos);
        items.push_back(context.NewString(value.AsString().Slice(begin, pos)));
      }
      return items;
    default:
      return absl::InvalidArgumentError(absl::StrCat(value.TypeName(), " is not iterable"));
  }
}

absl::Status NotAWholeNumber(absl::string_view what, const Value& value) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " must be a whole number, not ", value.TypeName()));
}

}  // namespace shoal::text::jinja
