// shoal-worker: one rank, a process that owns one shard of a model on one device.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/cluster_token.h"
#include "base/cpu_quota.h"
#include "base/file_limit.h"
#include "base/stderr_sink.h"
#include "base/thread/signal_watcher.h"
#include "glog/logging.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/quant/kv_type.h"
#include "model/graph/describe.h"
#include "parallel/topology.h"
#include "worker/engine/plan_report.h"
#include "worker/execute_loop.h"
#include "worker/rank_service.h"

namespace shoal::worker {
namespace {

constexpr int kExitUsage = 2;
constexpr int kMaxMessageBytes = 64 << 20;

struct Flags {
  std::string model;
  std::string listen = "127.0.0.1:8600";
  std::string worker_id = "worker";
  int threads = 0;
  std::vector<int> cpus;
  std::string isa = "auto";
  bool no_spin = false;
  int parent_pid = 0;
  // shoal-worker graph
  graph::Placement placement;
  int rank = 0;
  std::string stage = "program";
  std::string format = "text";
};

int Fail(const absl::Status& status) {
  std::cerr << "error: " << status.message() << "\n";
  return 1;
}

kernels::CpuOptions BackendOptions(const Flags& flags) {
  kernels::CpuOptions options;
  options.cpus = flags.cpus;
  options.threads = flags.threads;
  if (options.threads == 0) {
    options.threads = flags.cpus.empty() ? base::UsableCpus() : static_cast<int>(flags.cpus.size());
  }
  if (flags.isa == "auto") {
    options.isa = kernels::BestIsa();
  } else if (flags.isa == "amx") {
    options.isa = kernels::Isa::kAmx;
  } else if (flags.isa == "avx512") {
    options.isa = kernels::Isa::kAvx512;
  } else if (flags.isa == "avx2") {
    options.isa = kernels::Isa::kAvx2;
  } else {
    options.isa = kernels::Isa::kPortable;
  }
  return options;
}

// Whether only processes of this machine can reach it.
bool IsLocal(absl::string_view address) {
  return absl::StartsWith(address, "unix") || absl::StartsWith(address, "127.") ||
         absl::StartsWith(address, "localhost:") || absl::StartsWith(address, "[::1]:");
}

int Serve(const Flags& flags) {
  signal(SIGPIPE, SIG_IGN);  // of whoever reads the log, or READY
  base::SignalWatcher::Block();
  if (flags.parent_pid != 0) {
    const absl::Status followed = base::FollowParent(flags.parent_pid, SIGKILL);
    if (!followed.ok()) return Fail(followed);
  }
  RankOptions options;
  options.worker_id = flags.worker_id;
  options.version = SHOAL_VERSION;
  options.model_path = flags.model;
  options.token = base::ClusterToken();
  if (!base::IsValidToken(options.token)) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        base::kClusterTokenVariable, " must be of printable ASCII characters without spaces")));
  }
  if (options.token.empty() && !IsLocal(flags.listen)) {
    LOG(WARNING) << "anybody who reaches " << flags.listen << " may use this rank: set "
                 << base::kClusterTokenVariable << " for it and for its router";
  }
  options.spin = !flags.no_spin;
  options.new_backend = [backend = BackendOptions(flags)] {
    return kernels::NewCpuBackend(backend);
  };
  auto service = RankService::Create(std::move(options));
  if (!service.ok()) return Fail(service.status());

  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(flags.listen, grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // A router pings every 10 s, also while its stream is silent; gRPC's default takes that for
  // abuse.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.RegisterService(service->get());
  std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return Fail(absl::UnavailableError(absl::StrCat("cannot listen on ", flags.listen)));
  }
  (*service)->AttachHealth(server->GetHealthCheckService());
  const bool is_unix = absl::StartsWith(flags.listen, "unix");  // gRPC calls its port 1
  LOG(INFO) << "listening on " << flags.listen << (is_unix ? "" : absl::StrCat(" port ", port));
  std::cout << "READY listen=" << flags.listen << " port=" << port << std::endl;

  ExecuteLoop loop(service->get(), queue.get());
  std::thread loop_thread([&] { loop.Run(); });
  base::SignalWatcher watcher([] {});
  watcher.Wait();
  (*service)->Abort(absl::UnavailableError("the rank shuts down"));
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  loop.Shutdown();
  loop_thread.join();
  return 0;
}

int DescribeGraph(const Flags& flags) {
  const auto topology = parallel::Topology::Create(flags.placement.tp, flags.placement.pp);
  if (!topology.ok()) return Fail(topology.status());
  if (flags.rank >= topology->world_size()) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("rank ", flags.rank, " is not in 0..", topology->world_size() - 1, " of ",
                     topology->pp, " stages of ", topology->tp, " shards")));
  }
  graph::Placement placement = flags.placement;
  placement.shard = topology->shard_of(flags.rank);
  placement.stage = topology->stage_of(flags.rank);
  const auto text = graph::DescribeGraph(flags.model, placement, flags.stage, flags.format);
  if (!text.ok()) return Fail(text.status());
  std::cout << *text;
  return 0;
}

struct PlanFlags {
  std::string model;
  std::string kv_cache_dtype = "f16";
  std::string format = "table";
  uint64_t kv_cache_bytes = 0;
  uint64_t device_memory = 0;
  RankModel::Options options;
};

CLI::App* AddPlan(CLI::App* app, PlanFlags* flags) {
  const auto size = CLI::AsSizeValue(/*kb_is_1000=*/false);
  const auto bytes = CLI::Range(uint64_t{0}, uint64_t{1} << 50);
  CLI::App* plan = app->add_subcommand("plan", "what each rank would take, without loading");
  plan->add_option("model", flags->model, "GGUF file")->required();
  plan->add_option("--tp", flags->options.tp, "tensor parallel size")->check(CLI::Range(1, 8));
  plan->add_option("--pp", flags->options.pp, "pipeline parallel size")->check(CLI::Range(1, 16));
  plan->add_option("--stage-layers", flags->options.stage_layers, "layers of each pipeline stage")
      ->delimiter(',');
  plan->add_option("--max-batch-tokens", flags->options.max_batch_tokens, "0: 512");
  plan->add_option("--max-batch-seqs", flags->options.max_batch_seqs, "0: 64");
  plan->add_option("--max-seq-len", flags->options.max_seq_len, "0: the model's context");
  plan->add_option("--kv-cache-bytes", flags->kv_cache_bytes, "of each rank; 0: what fits")
      ->transform(size)
      ->check(bytes);
  plan->add_option("--kv-cache-dtype", flags->kv_cache_dtype, "f16, bf16, int8 or f32");
  plan->add_option("--device-memory", flags->device_memory, "of each rank; 0: this machine's")
      ->transform(size)
      ->check(bytes);
  plan->add_option("-o,--output", flags->format, "table or json")
      ->check(CLI::IsMember({"table", "json"}));
  return plan;
}

int Plan(const PlanFlags& flags) {
  RankModel::Options options = flags.options;
  const auto kv_type = kernels::ParseKvType(flags.kv_cache_dtype);
  if (!kv_type.ok()) return Fail(kv_type.status());
  options.kv_type = *kv_type;
  options.kv_bytes = static_cast<int64_t>(flags.kv_cache_bytes);
  const absl::StatusOr<PlanReport> report =
      PlanRanks(flags.model, options, static_cast<int64_t>(flags.device_memory));
  if (!report.ok()) return Fail(report.status());
  std::cout << (flags.format == "json" ? ToJson(*report) : ToTable(*report));
  return 0;
}

int Main(int argc, char** argv) {
  base::RaiseFileLimit();
  google::InitGoogleLogging(argv[0]);
  const base::StderrSink log;
  Flags flags;
  CLI::App app(
      "shoal-worker: one rank of a Shoal cluster. It waits for a router, which tells it the\n"
      "shard to load. Also `shoal-worker graph`: prints what a rank would run.");
  app.set_version_flag("--version", "shoal-worker " SHOAL_VERSION);
  app.option_defaults()->always_capture_default();
  app.add_option("--model", flags.model, "GGUF file")->envname("SHOAL_MODEL");
  app.add_option("--listen", flags.listen, "host:port, unix:PATH or unix-abstract:NAME");
  app.add_option("--worker-id", flags.worker_id, "name of this worker in status and logs");
  app.add_option("--threads", flags.threads, "compute threads (0: one for each CPU it may use)")
      ->check(CLI::Range(0, 1024));
  app.add_option("--cpus", flags.cpus, "pin the compute threads to these CPUs, e.g. 0,1")
      ->delimiter(',');
  app.add_option("--isa", flags.isa, "instruction set; all give the same bits")
      ->check(CLI::IsMember({"auto", "amx", "avx512", "avx2", "portable"}));
  app.add_flag("--no-spin", flags.no_spin, "never spin while waiting for peers");
  app.add_option("--parent-pid", flags.parent_pid, "die with this process, which is the parent");
  CLI::App* graph = app.add_subcommand("graph", "print a stage of the graph of one rank");
  graph->add_option("model", flags.model, "GGUF file")->required();
  graph->add_option("--tp", flags.placement.tp, "tensor parallel size")->check(CLI::Range(1, 8));
  graph->add_option("--pp", flags.placement.pp, "pipeline parallel size")->check(CLI::Range(1, 16));
  graph->add_option("--stage-layers", flags.placement.stage_layers, "layers of each pipeline stage")
      ->delimiter(',');
  graph->add_option("--rank", flags.rank, "rank: stage * tp + shard")->check(CLI::Range(0, 127));
  graph->add_option("--stage", flags.stage, "built, sharded, split, fused or program")
      ->check(CLI::IsMember({"built", "sharded", "split", "fused", "program"}));
  graph->add_option("-o,--output", flags.format, "text or dot")
      ->check(CLI::IsMember({"text", "dot"}));
  PlanFlags plan_flags;
  CLI::App* plan = AddPlan(&app, &plan_flags);
  app.require_subcommand(0, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : kExitUsage;
  }
  if (graph->parsed()) return DescribeGraph(flags);
  if (plan->parsed()) return Plan(plan_flags);
  if (flags.model.empty()) {
    std::cerr << "error: --model is missing: the GGUF file to serve\n";
    return kExitUsage;
  }
  return Serve(flags);
}

}  // namespace
}  // namespace shoal::worker

int main(int argc, char** argv) { return shoal::worker::Main(argc, argv); }
