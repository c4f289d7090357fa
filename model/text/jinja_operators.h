#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_value.h"

namespace shoal::text::jinja {

// Python's operators on values. Wrong types, undefined operands, a zero divisor and integers beyond
// 64 bits are INVALID_ARGUMENT. Marks of strings survive + and * and slices.

// op: + - * / // % **
absl::StatusOr<Value> Arithmetic(Context& context, absl::string_view op, const Value& a,
                                 const Value& b);

// op: + -
absl::StatusOr<Value> Sign(absl::string_view op, const Value& value);

// op: == != < <= > >= in "not in"
absl::StatusOr<bool> Compare(Context& context, absl::string_view op, const Value& a,
                             const Value& b);

// a == b. Fails only on limits.
absl::StatusOr<bool> Equals(Context& context, const Value& a, const Value& b);

// a < b
absl::StatusOr<bool> Less(Context& context, const Value& a, const Value& b);

// item in container
absl::StatusOr<bool> Contains(Context& context, const Value& container, const Value& item);

// Puts an entry into a dict that is still being made. INVALID_ARGUMENT: a key of a mutable type.
absl::Status SetEntry(Context& context, const Value& key, const Value& value, Dict* dict);

// The items that `for` goes over: of a list or tuple, the keys of a dict, the characters of a
// string; none of an undefined value.
absl::StatusOr<std::vector<Value>> Iterate(Context& context, const Value& value);

absl::Status NotAWholeNumber(absl::string_view what, const Value& value);

}  // namespace shoal::text::jinja
