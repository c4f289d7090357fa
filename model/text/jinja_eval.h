#pragma once

#include "absl/status/status.h"
#include "model/text/jinja_ast.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_string.h"
#include "model/text/jinja_value.h"

namespace shoal::text::jinja {

// Renders a template with the variables of `inputs` and appends the text to *out. `body` must
// outlive `context`. INVALID_ARGUMENT names the line of what went wrong: a wrong type, an undefined
// value, a limit, or the template's own raise_exception (then the message is the template's alone).
absl::Status Render(const Body& body, const Dict& inputs, Context& context, MarkedString* out);

}  // namespace shoal::text::jinja
