#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_native.h"
#include "model/text/jinja_operators.h"
#include "model/text/jinja_unicode.h"

namespace shoal::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;

template <Kind kKind>
Result IsKind(Context& context, const Value& input, const Arguments& args) {
  return Value::Bool(input.is(kKind));
}

Result IsDefined(Context& context, const Value& input, const Arguments& args) {
  return Value::Bool(!input.is_undefined());
}

template <bool kValue>
Result IsBool(Context& context, const Value& input, const Arguments& args) {
  return Value::Bool(input.is(Kind::kBool) && input.AsBool() == kValue);
}

Result IsNumber(Context& context, const Value& input, const Arguments& args) {
  return Value::Bool(input.is_number());
}

Result IsIterable(Context& context, const Value& input, const Arguments& args) {
  return Value::Bool(input.is_undefined() || input.is_string() || input.is_sequence() ||
                     input.is(Kind::kDict) || input.is(Kind::kLoop));
}

Result IsSequence(Context& context, const Value& input, const Arguments& args) {
  return Value::Bool(input.is_undefined() || input.is_string() || input.is_sequence() ||
                     input.is(Kind::kDict));
}

Result IsSameAs(Context& context, const Value& input, const Arguments& args) {
  return Value::Bool(input.IsSameAs(*args.Get(0)));
}

Result IsIn(Context& context, const Value& input, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const bool in, Contains(context, *args.Get(0), input));
  return Value::Bool(in);
}

Result DividesBy(Context& context, const Value& input, const Value& divisor, int64_t remainder) {
  SHOAL_ASSIGN_OR_RETURN(const Value mod, Arithmetic(context, "%", input, divisor));
  SHOAL_ASSIGN_OR_RETURN(const bool equal, Equals(context, mod, Value::Int(remainder)));
  return Value::Bool(equal);
}

Result IsOdd(Context& context, const Value& input, const Arguments& args) {
  return DividesBy(context, input, Value::Int(2), 1);
}

Result IsEven(Context& context, const Value& input, const Arguments& args) {
  return DividesBy(context, input, Value::Int(2), 0);
}

Result IsDivisibleBy(Context& context, const Value& input, const Arguments& args) {
  return DividesBy(context, input, *args.Get(0), 0);
}

template <char kFirst, char kSecond>
Result CompareWith(Context& context, const Value& input, const Arguments& args) {
  constexpr char kOp[] = {kFirst, kSecond, '\0'};
  SHOAL_ASSIGN_OR_RETURN(const bool holds, Compare(context, kOp, input, *args.Get(0)));
  return Value::Bool(holds);
}

// str.islower and str.isupper: some letter has case, and none has the other one.
Result HasOnlyCase(Context& context, const Value& input, bool lower) {
  bool some = false;
  if (!input.is_string()) {
    return Value::Bool(false);
  }
  context.Work(input.bytes().size());
  for (size_t pos = 0; pos < input.bytes().size();) {
    const char32_t c = DecodeCodePoint(input.bytes(), &pos);
    if ((lower ? ToLower(c) : ToUpper(c)) != c) {
      return Value::Bool(false);
    }
    some = some || (lower ? ToUpper(c) : ToLower(c)) != c;
  }
  return Value::Bool(some);
}

Result IsLower(Context& context, const Value& input, const Arguments& args) {
  return HasOnlyCase(context, input, true);
}

Result IsUpper(Context& context, const Value& input, const Arguments& args) {
  return HasOnlyCase(context, input, false);
}

Result IsFilter(Context& context, const Value& input, const Arguments& args) {
  return Value::Bool(input.is_string() && FindFilter(input.bytes()) != nullptr);
}

Result IsTest(Context& context, const Value& input, const Arguments& args) {
  return Value::Bool(input.is_string() && FindTest(input.bytes()) != nullptr);
}

constexpr Native kTests[] = {
    {"!=", &CompareWith<'!', '='>, {"other"}, 1},
    {"<", &CompareWith<'<', '\0'>, {"other"}, 1},
    {"<=", &CompareWith<'<', '='>, {"other"}, 1},
    {"==", &CompareWith<'=', '='>, {"other"}, 1},
    {">", &CompareWith<'>', '\0'>, {"other"}, 1},
    {">=", &CompareWith<'>', '='>, {"other"}, 1},
    {"boolean", &IsKind<Kind::kBool>},
    {"callable", &IsKind<Kind::kFunction>},
    {"defined", &IsDefined},
    {"divisibleby", &IsDivisibleBy, {"num"}, 1},
    {"eq", &CompareWith<'=', '='>, {"other"}, 1},
    {"equalto", &CompareWith<'=', '='>, {"other"}, 1},
    {"even", &IsEven},
    {"false", &IsBool<false>},
    {"filter", &IsFilter},
    {"float", &IsKind<Kind::kFloat>},
    {"ge", &CompareWith<'>', '='>, {"other"}, 1},
    {"greaterthan", &CompareWith<'>', '\0'>, {"other"}, 1},
    {"gt", &CompareWith<'>', '\0'>, {"other"}, 1},
    {"in", &IsIn, {"seq"}, 1},
    {"integer", &IsKind<Kind::kInt>},
    {"iterable", &IsIterable},
    {"le", &CompareWith<'<', '='>, {"other"}, 1},
    {"lessthan", &CompareWith<'<', '\0'>, {"other"}, 1},
    {"lower", &IsLower},
    {"lt", &CompareWith<'<', '\0'>, {"other"}, 1},
    {"mapping", &IsKind<Kind::kDict>},
    {"ne", &CompareWith<'!', '='>, {"other"}, 1},
    {"none", &IsKind<Kind::kNone>},
    {"number", &IsNumber},
    {"odd", &IsOdd},
    {"sameas", &IsSameAs, {"other"}, 1},
    {"sequence", &IsSequence},
    {"string", &IsKind<Kind::kString>},
    {"test", &IsTest},
    {"true", &IsBool<true>},
    {"undefined", &IsKind<Kind::kUndefined>},
    {"upper", &IsUpper},
};

}  // namespace

const Native* FindTest(absl::string_view name) { return FindIn(kTests, name); }

}  // namespace shoal::text::jinja
