#pragma once

#include "absl/strings/string_view.h"

namespace shoal::model {

// Whether all of `text` is UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing
// above U+10FFFF.
bool IsValidUtf8(absl::string_view text);

}  // namespace shoal::model
