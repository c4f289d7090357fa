#pragma once

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/text/jinja_value.h"

namespace shoal::text::jinja {

class Context;

using NamedValue = std::pair<absl::string_view, Value>;

// The arguments of a call, the input of a filter or the object of a method aside.
struct Arguments {
  absl::Span<const Value> positional;
  absl::Span<const NamedValue> named;

  // The argument at `index` of a call whose names were bound (see Native); null if not given.
  const Value* Get(size_t index) const {
    return index < positional.size() && !IsAbsent(positional[index]) ? &positional[index] : nullptr;
  }
  // The named argument `name` of a call whose names were not bound; null if not given.
  const Value* Get(absl::string_view name) const;

  // What stands for an argument that was not given but follows one that was.
  static Value Absent();
  static bool IsAbsent(const Value& value);
};

// A filter, test, method or global function. `input` is the filtered or tested value or the
// method's object; undefined for a global.
struct Native {
  using Fn = absl::StatusOr<Value> (*)(Context& context, const Value& input, const Arguments& args);
  static constexpr size_t kMaxParams = 5;

  absl::string_view name;
  Fn fn;
  // Parameter names, in order, up to the first empty one. CallNative binds named arguments to them
  // and refuses unknown, doubled, missing and surplus ones. A variadic native gets both as they
  // are.
  absl::string_view params[kMaxParams] = {};
  size_t num_required = 0;
  bool is_variadic = false;
};

// INVALID_ARGUMENT: wrong arguments, or what the native itself finds wrong.
absl::StatusOr<Value> CallNative(const Native& native, Context& context, const Value& input,
                                 const Arguments& args);

// Look-ups by template name; null if there is none.
const Native* FindFilter(absl::string_view name);
const Native* FindTest(absl::string_view name);
const Native* FindMethod(Kind kind, absl::string_view name);
const Native* FindGlobal(absl::string_view name);

// A method that would change its object; calling it is an error in jinja2's immutable sandbox.
bool IsMutatingMethod(Kind kind, absl::string_view name);

const Native* FindIn(absl::Span<const Native> table, absl::string_view name);

}  // namespace shoal::text::jinja
