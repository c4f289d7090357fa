#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command_bench.h"
#include "cli/command_chat.h"
#include "cli/command_generate.h"
#include "cli/command_serve.h"
#include "cli/command_tokens.h"
#include "cli/command_trace.h"
#include "cli/flags.h"

namespace shoal::cli {

struct CancelFlags {
  std::string request_id;
  std::string reason;
};

struct PlanFlags {
  std::vector<std::string> args;  // as `shoal-worker plan` has them
};

// What every command was given. Lives as long as the program.
struct AllFlags {
  SessionFlags session;
  ServeFlags serve;
  GraphFlags graph;
  PlanFlags plan;
  std::string replay_file;
  GenerateFlags generate;
  ChatFlags chat;
  TokenizeFlags tokenize;
  DetokenizeFlags detokenize;
  CancelFlags cancel;
  BenchFlags bench;
  TraceFlags trace;
  std::string health_service = "readiness";
  double watch_s = 0;  // 0: once
};

// The commands of each family, added to `root`. `flags` outlives it.
std::vector<Command> AddLocalCommands(CLI::App* root, AllFlags* flags);      // serve, graph, ...
std::vector<Command> AddInferenceCommands(CLI::App* root, AllFlags* flags);  // generate, chat, ...
std::vector<Command> AddClusterCommands(CLI::App* root, AllFlags* flags);    // models, status, ...

}  // namespace shoal::cli
