#pragma once

#include <istream>

#include "cli/command_generate.h"

namespace shoal::cli {

struct ChatFlags {
  SamplingFlags sampling;
  std::string system;
  bool is_interactive = false;  // show a prompt, and go on after an error
};

// A conversation: every line of `in` is a user's message, every answer is streamed to `session.out`
// and kept. Ends with the end of `in` (Ctrl-D).
int RunChat(const Session& session, const ChatFlags& flags, std::istream* in);

}  // namespace shoal::cli
