#include "model/text/jinja_native.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/text/jinja_string.h"

namespace shoal::text::jinja {
namespace {

absl::Status WrongArguments(const Native& native, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(native.name, "() ", what));
}

size_t NumParams(const Native& native) {
  size_t count = 0;
  while (count < Native::kMaxParams && !native.params[count].empty()) {
    ++count;
  }
  return count;
}

// A value that no template can make: told by its address.
const MarkedString& AbsentMark() {
  static const auto* mark = new MarkedString("argument not given", Origin::kTemplate);
  return *mark;
}

}  // namespace

Value Arguments::Absent() { return Value::Undefined(&AbsentMark()); }

bool Arguments::IsAbsent(const Value& value) {
  return value.is_undefined() && value.why() == &AbsentMark();
}

const Value* Arguments::Get(absl::string_view name) const {
  for (const NamedValue& arg : named) {
    if (arg.first == name) {
      return &arg.second;
    }
  }
  return nullptr;
}

absl::StatusOr<Value> CallNative(const Native& native, Context& context, const Value& input,
                                 const Arguments& args) {
  if (native.is_variadic) {
    return native.fn(context, input, args);
  }
  const size_t num_params = NumParams(native);
  if (args.positional.size() > num_params) {
    return WrongArguments(native, absl::StrCat("takes at most ", num_params, " arguments, not ",
                                               args.positional.size()));
  }
  std::vector<Value> bound(args.positional.begin(), args.positional.end());
  bound.resize(num_params, Arguments::Absent());
  for (const NamedValue& arg : args.named) {
    const size_t i =
        std::find(native.params, native.params + num_params, arg.first) - native.params;
    if (i == num_params) {
      return WrongArguments(native, absl::StrCat("has no parameter '", arg.first, "'"));
    }
    if (!Arguments::IsAbsent(bound[i])) {
      return WrongArguments(native, absl::StrCat("got two values for '", arg.first, "'"));
    }
    bound[i] = arg.second;
  }
  for (size_t i = 0; i < native.num_required; ++i) {
    if (Arguments::IsAbsent(bound[i])) {
      return WrongArguments(native, absl::StrCat("needs the argument '", native.params[i], "'"));
    }
  }
  return native.fn(context, input, {bound, {}});
}

const Native* FindIn(absl::Span<const Native> table, absl::string_view name) {
  for (const Native& native : table) {
    if (native.name == name) {
      return &native;
    }
  }
  return nullptr;
}

}  // namespace shoal::text::jinja
