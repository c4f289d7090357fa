#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/text/jinja_ast.h"

namespace shoal::text::jinja {

// Deepest nesting of expressions, and of blocks, that the parser takes.
inline constexpr int kMaxNesting = 100;

// Parses the Jinja of chat templates: if, for (with if and else), set, macro, filter, raw, break,
// continue, and generation (whose body is rendered as it is). INVALID_ARGUMENT names the line of a
// syntax error, of an unknown tag, filter or test, and of what nests deeper than kMaxNesting.
absl::StatusOr<Body> Parse(absl::string_view source);

}  // namespace shoal::text::jinja
