#pragma once

#include <optional>
#include <string>

#include "cli/bench_load.h"
#include "cli/client.h"

namespace shoal::cli {

struct BenchFlags {
  std::string model;
  uint32_t clients = 4;            // closed loop, if there is no rate
  std::optional<double> rate;      // requests a second, open loop
  std::optional<uint32_t> warmup;  // requests; default: as many as clients
  uint32_t output_tokens = 64;
  BenchLoad load;              // the model's part is asked from the router
  bool show_progress = false;  // on session.err
};

// Measures a router under a load of random prompts with exact lengths. kExitRuntime if a request
// failed; the report is printed all the same.
int RunBench(const Session& session, const BenchFlags& flags);

}  // namespace shoal::cli
