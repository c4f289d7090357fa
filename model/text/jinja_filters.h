#pragma once

#include "absl/types/span.h"
#include "model/text/jinja_native.h"

namespace shoal::text::jinja {

// The two halves of FindFilter's table: filters of one value, and filters of sequences.
absl::Span<const Native> ValueFilters();
absl::Span<const Native> SequenceFilters();

}  // namespace shoal::text::jinja
