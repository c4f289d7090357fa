#pragma once

#include <string>
#include <vector>

namespace shoal::cli {

struct ServeFlags {
  std::string model;  // path
  int tp = 1;
  int pp = 1;
  int threads = 0;   // of each rank; 0: an even share of the CPUs
  std::string cpus;  // "0-3,8"; empty: those of this process
  std::string isa = "auto";
  bool no_spin = false;
  // "--max-batch-tokens", "512", ...: as shoal-router has them.
  std::vector<std::string> router_args;
};

struct GraphFlags {
  std::string model;  // path
  int tp = 1;
  int pp = 1;
  int rank = 0;                   // below tp * pp
  std::vector<std::string> args;  // "--stage", "fused", ...: as `shoal-worker graph` has them
};

// The router and the ranks of one cluster on this machine, as processes. Prints the router's READY
// line on stdout and nothing else there. Clients know the model by its file's name, without .gguf,
// unless a flag or the environment names it. Returns the exit code.
// REQUIRES: no other thread in this process, so nothing of gRPC.
int RunServe(const ServeFlags& flags);

// Becomes `shoal-worker graph`. Returns only on failure, with the exit code.
int RunGraph(const GraphFlags& flags);

// Becomes `shoal-worker plan` with `args`. Likewise.
int RunPlan(const std::vector<std::string>& args);

// Becomes `shoal-router --replay PATH`. Likewise.
int RunReplay(const std::string& path);

}  // namespace shoal::cli
