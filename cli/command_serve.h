#pragma once

#include <string>
#include <vector>

namespace shoal::cli {

struct ServeFlags {
  std::string model;  // path
  int tp = 1;
  int threads = 0;   // of each rank; 0: an even share of the CPUs
  std::string cpus;  // "0-3,8"; empty: those of this process
  std::string isa = "auto";
  bool no_spin = false;
  std::vector<std::string>
      router_args;  // "--max-batch-tokens", "512", ...: as shoal-router has them
};

// The router and the ranks of one cluster on this machine, as processes. Prints the router's READY
// line on stdout and nothing else there. Returns the exit code.
// REQUIRES: no other thread in this process, so nothing of gRPC.
int RunServe(const ServeFlags& flags);

// Becomes `shoal-worker graph`. Returns only on failure, with the exit code.
int RunGraph(const std::vector<std::string>& args);

}  // namespace shoal::cli
