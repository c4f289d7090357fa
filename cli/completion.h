#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace shoal::cli {

struct CompletedCommand {
  std::string name;                  // empty: shoalctl without a command
  std::vector<std::string> options;  // "--server", "-o"
};

// A script for bash that completes commands, their options and, for arguments, file names.
std::string BashCompletion(absl::Span<const CompletedCommand> commands);

}  // namespace shoal::cli
