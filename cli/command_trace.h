#pragma once

#include <cstdint>
#include <string>

#include "cli/client.h"

namespace shoal::cli {

struct TraceFlags {
  uint32_t steps = 50;
  std::string path;  // of the trace; empty: none is written
  double wait_s = 30;
};

// Records the next steps, writes them to the file, and prints for every process what its steps were
// spent on.
int RunTrace(const Session& session, const TraceFlags& flags);

}  // namespace shoal::cli
