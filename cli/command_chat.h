#pragma once

#include <istream>

#include "cli/command_generate.h"

namespace shoal::cli {

struct ChatFlags {
  // Small models repeat themselves for ever when greedy, so a conversation samples unless told.
  static constexpr float kTemperature = 0.7f;
  static constexpr float kRepetitionPenalty = 1.1f;
  static constexpr uint32_t kMaxTokens = 1024;

  ChatFlags() { sampling.max_tokens = kMaxTokens; }

  SamplingFlags sampling;
  std::string system;
  bool is_interactive = false;  // show a prompt, obey /commands, and go on after an error
};

// A conversation: every line of `in` is a user's message, every answer is streamed to `session.out`
// and kept. When it outgrows the context its oldest messages are dropped, which is said. Ends with
// the end of `in` (Ctrl-D).
int RunChat(const Session& session, const ChatFlags& flags, std::istream* in);

}  // namespace shoal::cli
