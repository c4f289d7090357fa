#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_value.h"

namespace shoal::text::jinja {

// JSON text as a value: objects keep their order, all strings are the user's, integers beyond 64
// bits become floats. INVALID_ARGUMENT: not one JSON value, not UTF-8, or nested over max_depth.
absl::StatusOr<Value> ParseJson(Context& context, absl::string_view text);

// The arguments of Python's json.dumps.
struct JsonStyle {
  bool pretty = false;  // items on lines of their own ...
  std::string indent;   // ... behind this, once a level
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator;  // "," or ", "
  std::string key_separator = ": ";
};

// json.dumps(value), appended. INVALID_ARGUMENT: a value that JSON does not have, or a limit.
absl::Status AppendJson(Context& context, const Value& value, const JsonStyle& style,
                        std::string* out);

}  // namespace shoal::text::jinja
