#pragma once

#include <istream>
#include <string>
#include <vector>

#include "cli/client.h"

namespace shoal::cli {

struct TokenizeFlags {
  std::string model;
  std::string text;            // "-": stdin
  bool no_special = false;     // no begin-of-sequence token
  bool parse_special = false;  // "<|im_end|>" is one token
};

struct DetokenizeFlags {
  std::string model;
  std::vector<std::string> ids;  // "1", "1,2"; "-": stdin
  bool keep_special = false;
};

// The ids on one line, or a table with the text of each when the output is a terminal.
int RunTokenize(const Session& session, const TokenizeFlags& flags, std::istream* in);
int RunDetokenize(const Session& session, const DetokenizeFlags& flags, std::istream* in);

}  // namespace shoal::cli
