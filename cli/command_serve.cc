#include "cli/command_serve.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/cluster_token.h"
#include "base/cpu_quota.h"
#include "base/utf8.h"
#include "cli/cpu_split.h"
#include "cli/exit_code.h"
#include "cli/process_loop.h"
#include "glog/logging.h"

namespace shoal::cli {
namespace {

int Fail(int exit_code, absl::string_view message) {
  std::cerr << "error: " << message << std::endl;
  return exit_code;
}

// Of a program that is installed beside this one.
std::string PathOf(absl::string_view program) {
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, size > 0 ? size : 0);
  return absl::StrCat(self.substr(0, self.rfind('/') + 1), program);
}

// Empty if the file can be read.
std::string WhyUnreadable(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || access(path.c_str(), R_OK) != 0) {
    return absl::StrCat("cannot read the model ", path, ": ", strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return absl::StrCat("the model ", path, " is not a file");
  return "";
}

// "/models/Tiny.Q4_1.gguf" -> "Tiny.Q4_1".
std::string StemOf(absl::string_view path) {
  const absl::string_view name = path.substr(path.rfind('/') + 1);
  return std::string(absl::StripSuffix(name, ".gguf"));
}

// Abstract unix sockets: nothing is left behind in any folder.
std::vector<std::string> RankAddresses(int num_ranks) {
  std::random_device device;
  const uint64_t bits = (uint64_t{device()} << 32) | device();
  std::vector<std::string> addresses;
  for (int rank = 0; rank < num_ranks; ++rank) {
    addresses.push_back(absl::StrFormat("unix-abstract:shoal-%d-%016x-r%d", getpid(), bits, rank));
  }
  return addresses;
}

// 128 random bits of the kernel's.
std::string NewToken() {
  uint64_t bits[2];
  PCHECK(getrandom(bits, sizeof(bits), 0) == sizeof(bits));  // so few always come at once
  return absl::StrFormat("%016x%016x", bits[0], bits[1]);
}

std::vector<std::string> RankArgs(const ServeFlags& flags, const CpuSplit& split, int rank,
                                  const std::string& address) {
  std::vector<std::string> args = {PathOf("shoal-worker"),
                                   "--model",
                                   flags.model,
                                   "--listen",
                                   address,
                                   "--worker-id",
                                   absl::StrCat("rank-", rank),
                                   "--threads",
                                   absl::StrCat(split.threads),
                                   "--isa",
                                   flags.isa,
                                   "--parent-pid",
                                   absl::StrCat(getpid())};
  if (!split.cpus[rank].empty()) {
    args.push_back("--cpus");
    args.push_back(absl::StrJoin(split.cpus[rank], ","));
  }
  if (split.oversubscribed || flags.no_spin) args.push_back("--no-spin");
  return args;
}

// What the router makes of its flag or its environment, which it has checked or will refuse.
absl::Duration DrainTimeout(const std::vector<std::string>& router_args) {
  double seconds = 30;  // shoal-router's default
  if (const char* text = getenv("SHOAL_DRAIN_TIMEOUT"); text != nullptr) {
    if (!absl::SimpleAtod(text, &seconds)) seconds = 30;
  }
  for (size_t i = 0; i + 1 < router_args.size(); ++i) {
    if (router_args[i] != "--drain-timeout") continue;
    if (!absl::SimpleAtod(router_args[i + 1], &seconds)) seconds = 30;
  }
  return absl::Seconds(seconds);
}

// Returns only on failure, with the exit code.
int Become(const std::string& program, std::vector<std::string> args) {
  args.insert(args.begin(), PathOf(program));
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  return Fail(kExitRuntime, absl::StrCat("cannot start ", args[0], ": ", strerror(errno)));
}

}  // namespace

int RunServe(const ServeFlags& flags) {
  if (const std::string why = WhyUnreadable(flags.model); !why.empty()) {
    return Fail(kExitRuntime, why);
  }
  for (const std::string& program : {PathOf("shoal-worker"), PathOf("shoal-router")}) {
    if (access(program.c_str(), X_OK) != 0) {
      return Fail(kExitRuntime, absl::StrCat("cannot run ", program, ": ", strerror(errno)));
    }
  }
  std::vector<int> cpus = base::AvailableCpus();
  if (!flags.cpus.empty()) {
    absl::StatusOr<std::vector<int>> chosen = ParseCpuList(flags.cpus);
    if (!chosen.ok()) return Fail(kExitUsage, absl::StrCat("--cpus: ", chosen.status().message()));
    cpus = *std::move(chosen);
  }
  const int num_cpus = static_cast<int>(cpus.size());
  const int num_usable = base::UsableCpus(num_cpus, base::CpuQuota());
  const int num_ranks = flags.tp * flags.pp;
  const CpuSplit split = SplitCpus(cpus, num_usable, !flags.cpus.empty(), num_ranks, flags.threads);
  if (!flags.cpus.empty() && num_ranks * split.threads > num_cpus) {
    return Fail(kExitUsage,
                absl::StrCat("--cpus names ", cpus.size(), " CPUs, but ", num_ranks, " ranks with ",
                             split.threads, " threads each need ", num_ranks * split.threads,
                             ": name more, or ask for fewer --threads"));
  }
  if (split.oversubscribed) {
    std::cerr << "warning: " << num_ranks << " ranks with " << split.threads
              << " threads each share " << num_usable << " CPUs"
              << (num_usable < num_cpus ? " that their control group leaves them" : "")
              << ": fewer --threads are faster" << std::endl;
  }
  const std::vector<std::string> addresses = RankAddresses(num_ranks);
  ProcessLoop::Options options;
  for (int rank = 0; rank < num_ranks; ++rank) {
    options.ranks.push_back(RankArgs(flags, split, rank, addresses[rank]));
  }
  options.router = {PathOf("shoal-router"),        "--workers",
                    absl::StrJoin(addresses, ","), "--tensor-parallel-size",
                    absl::StrCat(flags.tp),        "--pipeline-parallel-size",
                    absl::StrCat(flags.pp),        "--parent-pid",
                    absl::StrCat(getpid())};
  const bool is_named = std::find(flags.router_args.begin(), flags.router_args.end(),
                                  "--model-name") != flags.router_args.end();
  if (!is_named && getenv("SHOAL_MODEL_NAME") == nullptr) {
    if (!base::IsValidUtf8(StemOf(flags.model))) {
      return Fail(kExitUsage, "the model's file name is not UTF-8: give it a --model-name");
    }
    options.router.push_back("--model-name");
    options.router.push_back(StemOf(flags.model));
  }
  options.router.insert(options.router.end(), flags.router_args.begin(), flags.router_args.end());
  options.drain_timeout = DrainTimeout(flags.router_args);
  options.on_ready = [](absl::string_view line) { std::cout << line << std::endl; };
  if (base::ClusterToken().empty()) {
    setenv(base::kClusterTokenVariable, NewToken().c_str(), /*overwrite=*/1);
  }
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // the children say errors in their own words
  return ProcessLoop(std::move(options)).Run();
}

int RunGraph(const GraphFlags& flags) {
  std::vector<std::string> args = {"graph",  flags.model,
                                   "--tp",   absl::StrCat(flags.tp),
                                   "--pp",   absl::StrCat(flags.pp),
                                   "--rank", absl::StrCat(flags.rank)};
  args.insert(args.end(), flags.args.begin(), flags.args.end());
  return Become("shoal-worker", std::move(args));
}

int RunPlan(const std::vector<std::string>& args) {
  std::vector<std::string> all = {"plan"};
  all.insert(all.end(), args.begin(), args.end());
  return Become("shoal-worker", std::move(all));
}

int RunReplay(const std::string& path) { return Become("shoal-router", {"--replay", path}); }

}  // namespace shoal::cli
