#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_value.h"

namespace shoal::text::jinja {

// Operations on strings that filters and methods share. Strip, ReplaceText and JoinText keep marks;
// the others make user text, so that nothing but a template's own bytes in their own order can
// become a control token.

// `chars` null, absent or None: white space. INVALID_ARGUMENT: `chars` is no string.
absl::StatusOr<Value> Strip(Context& context, const Value& text, const Value* chars, bool left,
                            bool right);

// Python's str.replace: `count` < 0 for all; an empty `from` matches between all characters. The
// new bytes have the marks of `to`. REQUIRES all three are strings.
absl::StatusOr<Value> ReplaceText(Context& context, const Value& text, const Value& from,
                                  const Value& to, int64_t count);

// REQUIRES that `separator` is a string. Items that are no strings are printed.
absl::StatusOr<Value> JoinText(Context& context, const Value& separator,
                               absl::Span<const Value> items);

std::string Capitalize(absl::string_view text);  // Python's str.capitalize
std::string Title(absl::string_view text);  // first letter of each run of letters in upper case

// Python's str.splitlines.
std::vector<absl::string_view> SplitLines(absl::string_view text, bool keep_ends);

// Optional arguments. INVALID_ARGUMENT: given, but of another type.
absl::StatusOr<int64_t> IntArgument(const Value* value, absl::string_view name, int64_t otherwise);
absl::StatusOr<absl::string_view> StringArgument(const Value* value, absl::string_view name,
                                                 absl::string_view otherwise);
bool BoolArgument(const Value* value, bool otherwise);

}  // namespace shoal::text::jinja
