#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace shoal::cli {

// The name nearest to `wrong` by insertions, deletions, replacements and swaps of neighbours; empty
// if none is near enough to be what was meant (a third of its length, at least one).
std::string Nearest(absl::string_view wrong, const std::vector<std::string>& names);

}  // namespace shoal::cli
