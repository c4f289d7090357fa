#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_native.h"
#include "model/text/jinja_operators.h"
#include "model/text/jinja_print.h"
#include "model/text/jinja_text.h"

namespace shoal::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Result Range(Context& context, const Value& self, const Arguments& args) {
  constexpr uint64_t kMaxItems = 100'000;  // as jinja2's sandbox
  for (size_t i = 0; i < 3; ++i) {
    SHOAL_RETURN_IF_ERROR(IntArgument(args.Get(i), "an argument of range", 0).status());
  }
  const bool has_start = args.Get(1) != nullptr;
  const int64_t start = has_start ? args.Get(0)->AsInt() : 0;
  const int64_t stop = args.Get(has_start ? 1 : 0)->AsInt();
  const int64_t step = args.Get(2) != nullptr ? args.Get(2)->AsInt() : 1;
  if (step == 0) {
    return absl::InvalidArgumentError("the step of range is 0");
  }
  std::vector<Value> items;
  const bool up = step > 0;
  if (up ? start < stop : start > stop) {
    const uint64_t distance = up ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                 : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
    const uint64_t stride = up ? static_cast<uint64_t>(step) : -static_cast<uint64_t>(step);
    const uint64_t count = (distance - 1) / stride + 1;
    if (count > kMaxItems) {
      return absl::InvalidArgumentError(
          absl::StrCat("range has ", count, " items (limit ", kMaxItems, ")"));
    }
    for (uint64_t i = 0; i < count; ++i) {
      items.push_back(Value::Int(start + static_cast<int64_t>(i) * step));
    }
  }
  return context.NewList(std::move(items));
}

// Entries of an optional dict, then named arguments.
absl::StatusOr<Dict> NewEntries(Context& context, const Arguments& args, absl::string_view name) {
  Dict dict;
  if (args.positional.size() > 1 ||
      (args.positional.size() == 1 && !args.positional[0].is(Kind::kDict))) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "() takes named arguments and at most one dict"));
  }
  if (!args.positional.empty()) {
    dict = args.positional[0].AsDict();
  }
  for (const auto& [key, value] : args.named) {
    dict.Set(context.NewString(MarkedString(key, Origin::kTemplate)), value);
  }
  return dict;
}

Result NewNamespace(Context& context, const Value& self, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(Dict attributes, NewEntries(context, args, "namespace"));
  return context.NewNamespace(std::move(attributes));
}

Result NewDict(Context& context, const Value& self, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(Dict dict, NewEntries(context, args, "dict"));
  return context.NewDict(std::move(dict));
}

Result RaiseException(Context& context, const Value& self, const Arguments& args) {
  std::string message;
  SHOAL_RETURN_IF_ERROR(AppendStr(context, *args.Get(0), &message));
  return context.Raise(message);
}

Result StrftimeNow(Context& context, const Value& self, const Arguments& args) {
  SHOAL_ASSIGN_OR_RETURN(const absl::string_view format,
                         StringArgument(args.Get(0), "the format of strftime_now", ""));
  constexpr size_t kMaxFormat = 1024;
  if (format.size() > kMaxFormat) {
    return absl::InvalidArgumentError(absl::StrCat("the format of strftime_now has ", format.size(),
                                                   " bytes (limit ", kMaxFormat, ")"));
  }
  return context.NewUserString(absl::FormatTime(format, context.now(), absl::UTCTimeZone()));
}

constexpr Native kGlobals[] = {
    {"dict", &NewDict, {}, 0, true},
    {"namespace", &NewNamespace, {}, 0, true},
    {"raise_exception", &RaiseException, {"message"}, 1},
    {"range", &Range, {"start", "stop", "step"}, 1},
    {"strftime_now", &StrftimeNow, {"format"}, 1},
};

}  // namespace

const Native* FindGlobal(absl::string_view name) { return FindIn(kGlobals, name); }

}  // namespace shoal::text::jinja
