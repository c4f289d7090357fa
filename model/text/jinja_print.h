#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_value.h"

namespace shoal::text::jinja {

// Values as text, the way Python 3 writes them. All fail when the text grows over
// max_output_bytes or a value nests too deeply (a namespace can hold itself).

// str(value), appended. Undefined is empty.
absl::Status AppendStr(Context& context, const Value& value, std::string* out);

// repr(value), appended.
absl::Status AppendRepr(Context& context, const Value& value, std::string* out);

// A string keeps its marks; the text of anything else is the user's.
absl::StatusOr<Value> ToStringValue(Context& context, const Value& value);

// repr(float): the shortest decimal that reads back as the same value.
std::string FormatFloat(double value);

}  // namespace shoal::text::jinja
