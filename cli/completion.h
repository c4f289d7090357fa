#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace shoal::cli {

struct CompletedCommand {
  std::string name;                  // empty: shoalctl without a command
  std::vector<std::string> options;  // "--server", "-o"
  bool takes_file = false;           // as its argument
};

// A script for bash that completes commands, their options and, for the arguments of commands that
// take one, file names.
std::string BashCompletion(absl::Span<const CompletedCommand> commands);

}  // namespace shoal::cli
