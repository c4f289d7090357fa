#pragma once

#include <functional>

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
  bool is_interactive = false;  // a person types: obey /commands, and go on after an error
};

// The next line; false at the end.
using LineSource = std::function<bool(std::string* line)>;

// A conversation: every line is a user's message, every answer is streamed to `session.out` and
// kept. When it outgrows the context its oldest messages are dropped, which is said. Ends with the
// lines (Ctrl-D).
int RunChat(const Session& session, const ChatFlags& flags, const LineSource& next_line);

}  // namespace shoal::cli
