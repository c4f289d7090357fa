// shoal-router: takes the clients' requests and runs them on one group of worker ranks.

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/cluster_token.h"
#include "base/file_limit.h"
#include "base/protocol_version.h"
#include "base/stderr_sink.h"
#include "base/thread/signal_watcher.h"
#include "base/utf8.h"
#include "glog/logging.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "router/group_shell.h"
#include "router/health.h"
#include "router/history_codec.h"
#include "router/history_recorder.h"
#include "router/library_logs.h"
#include "router/listener.h"
#include "router/replay.h"
#include "router/router_server.h"

namespace shoal::router {
namespace {

constexpr int kExitUsage = 2;

struct Flags {
  std::vector<std::string> workers;
  uint32_t tensor_parallel_size = 0;  // 0: as many as workers for each stage
  uint32_t pipeline_parallel_size = 1;
  std::vector<uint32_t> stage_layers;  // none: the ranks choose
  std::string listen = "127.0.0.1:8500";
  std::string admin_listen = "127.0.0.1:8501";
  std::string model_name;
  uint32_t max_batch_tokens = 512;
  uint32_t max_batch_seqs = 64;
  uint32_t max_seq_len = 0;
  uint32_t max_prefill_chunk = 0;
  uint32_t max_queued_requests = 256;
  uint32_t max_plans_in_flight = 0;  // 0: see MaxPlansInFlight
  uint64_t kv_cache_bytes = 0;
  std::string kv_cache_dtype = "f16";
  std::string profile = "auto";
  double inter_token_target_s = -1;  // below 0: the profile's
  bool no_prefix_cache = false;
  bool take_over = false;
  double startup_timeout_s = 600;
  double step_timeout_s = 5;
  double recovery_timeout_s = 60;
  double drain_timeout_s = 30;
  int parent_pid = 0;
  std::string record;
  uint64_t record_limit = uint64_t{1} << 30;
  std::string replay;
};

// Seconds from `min` to `max`. (CLI::Range lets NaN through: each comparison with it is false.)
CLI::Validator SecondsIn(double min, double max) {
  return CLI::Validator(
      [min, max](const std::string& text) -> std::string {
        double value = NAN;
        if (absl::SimpleAtod(text, &value) && value >= min && value <= max) return "";
        return absl::StrCat("is ", text, ", not a number of seconds from ", min, " to ", max);
      },
      "");
}

void AddFlags(CLI::App* app, Flags* flags) {
  app->add_option("--workers", flags->workers,
                  "addresses of the ranks in rank order: HOST:PORT, unix:PATH, unix-abstract:NAME")
      ->delimiter(',')
      ->envname("SHOAL_WORKERS");
  app->add_option("--tensor-parallel-size,--tp", flags->tensor_parallel_size,
                  "ranks that share each layer; default: as many as --workers and --pp leave")
      ->check(CLI::Range(1, 8))
      ->envname("SHOAL_TENSOR_PARALLEL_SIZE");
  app->add_option("--pipeline-parallel-size,--pp", flags->pipeline_parallel_size,
                  "stages, each with a part of the layers")
      ->check(CLI::Range(1, 16))
      ->envname("SHOAL_PIPELINE_PARALLEL_SIZE")
      ->capture_default_str();
  app->add_option("--stage-layers", flags->stage_layers,
                  "layers of each stage: 17,13; default: so that all read as many weights")
      ->delimiter(',')
      ->envname("SHOAL_STAGE_LAYERS");
  app->add_option("--listen", flags->listen, "address for clients; port 0 takes any")
      ->envname("SHOAL_LISTEN")
      ->capture_default_str();
  app->add_option("--admin-listen", flags->admin_listen, "address for operators")
      ->envname("SHOAL_ADMIN_LISTEN")
      ->capture_default_str();
  app->add_option("--model-name", flags->model_name, "name for clients; default: the model's own")
      ->envname("SHOAL_MODEL_NAME");
  app->add_option("--max-batch-tokens", flags->max_batch_tokens, "tokens of one step")
      ->check(CLI::Range(1, 65536))
      ->envname("SHOAL_MAX_BATCH_TOKENS")
      ->capture_default_str();
  app->add_option("--max-batch-seqs", flags->max_batch_seqs, "sequences of one step")
      ->check(CLI::Range(1, 4096))
      ->envname("SHOAL_MAX_BATCH_SEQS")
      ->capture_default_str();
  app->add_option("--max-seq-len", flags->max_seq_len,
                  "tokens of prompt and output; 0: the model's context")
      ->envname("SHOAL_MAX_SEQ_LEN")
      ->capture_default_str();
  app->add_option("--max-prefill-chunk", flags->max_prefill_chunk,
                  "tokens of one prompt in one step; 0: max-batch-tokens")
      ->envname("SHOAL_MAX_PREFILL_CHUNK")
      ->capture_default_str();
  app->add_option("--max-queued-requests", flags->max_queued_requests,
                  "sequences that may wait; more are refused")
      ->check(CLI::Range(0, 1 << 20))
      ->envname("SHOAL_MAX_QUEUED_REQUESTS")
      ->capture_default_str();
  app->add_option("--max-plans-in-flight", flags->max_plans_in_flight,
                  "steps planned before the first of them is answered; 1: no step is planned "
                  "ahead; default: one for each stage, 2 without a pipeline")
      ->check(CLI::Range(1, 17))
      ->envname("SHOAL_MAX_PLANS_IN_FLIGHT");
  app->add_option("--kv-cache-bytes", flags->kv_cache_bytes,
                  "of each rank: 500000000 or 2GiB; 0: what fits")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false).description("SIZE"))
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 50))
      ->envname("SHOAL_KV_CACHE_BYTES")
      ->capture_default_str();
  app->add_option("--kv-cache-dtype", flags->kv_cache_dtype,
                  "f16, bf16, int8 or f32: int8 takes half the memory of f16")
      ->check(CLI::IsMember({"f16", "bf16", "int8", "f32"}))
      ->envname("SHOAL_KV_CACHE_DTYPE")
      ->capture_default_str();
  app->add_option("--profile", flags->profile,
                  "what steps are cut for: latency (tokens come at most some 50 ms apart, however "
                  "long the prompts beside them), balanced (100 ms), throughput (steps as large as "
                  "--max-batch-tokens), auto (balanced)")
      ->check(CLI::IsMember({"auto", "latency", "balanced", "throughput"}))
      ->envname("SHOAL_PROFILE")
      ->capture_default_str();
  app->add_option("--inter-token-target", flags->inter_token_target_s,
                  "seconds between tokens that prompts beside them may make; 0: any; default: the "
                  "profile's")
      ->check(SecondsIn(0.0, 1e6))
      ->envname("SHOAL_INTER_TOKEN_TARGET");
  app->add_flag("--no-prefix-cache", flags->no_prefix_cache, "compute every prompt anew")
      ->envname("SHOAL_NO_PREFIX_CACHE");
  app->add_flag("--take-over", flags->take_over, "take ranks that another router is using");
  app->add_option("--startup-timeout", flags->startup_timeout_s,
                  "seconds until the ranks are ready")
      ->check(SecondsIn(0.001, 1e6))
      ->envname("SHOAL_STARTUP_TIMEOUT")
      ->capture_default_str();
  app->add_option(
         "--step-timeout", flags->step_timeout_s,
         "seconds that ranks have for a step, or ten times what it should take if that is "
         "more; a rank that then answers nothing hangs. The first steps of all have 60 s at least")
      ->check(SecondsIn(0.1, 1e6))
      ->envname("SHOAL_STEP_TIMEOUT")
      ->capture_default_str();
  app->add_option("--recovery-timeout", flags->recovery_timeout_s,
                  "seconds that streams wait for a lost rank")
      ->check(SecondsIn(0.001, 1e6))
      ->envname("SHOAL_RECOVERY_TIMEOUT")
      ->capture_default_str();
  app->add_option("--drain-timeout", flags->drain_timeout_s,
                  "seconds that requests have to finish after SIGTERM")
      ->check(SecondsIn(0.0, 1e6))
      ->envname("SHOAL_DRAIN_TIMEOUT")
      ->capture_default_str();
  app->add_option("--record", flags->record,
                  "file for the history of scheduling, for --replay: prompts and answers are in it")
      ->envname("SHOAL_RECORD");
  app->add_option("--record-limit", flags->record_limit, "where a recording ends")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false).description("SIZE"))
      ->envname("SHOAL_RECORD_LIMIT")
      ->capture_default_str();
  app->add_option("--replay", flags->replay,
                  "plays a recorded history, says where this version plans otherwise, and exits");
  app->add_option("--parent-pid", flags->parent_pid,
                  "drain and exit when this process, our parent, dies");
}

// 0 if the workers are fewer than the stages.
uint32_t TensorParallelSize(const Flags& flags) {
  if (flags.tensor_parallel_size != 0) return flags.tensor_parallel_size;
  return static_cast<uint32_t>(flags.workers.size()) / flags.pipeline_parallel_size;
}

uint32_t MaxPlansInFlight(const Flags& flags) {
  if (flags.max_plans_in_flight != 0) return flags.max_plans_in_flight;
  return std::max(2u, flags.pipeline_parallel_size);
}

// What CLI11's checks of single flags cannot see. Empty if all is well.
std::string FindContradiction(const Flags& flags) {
  if (!flags.replay.empty()) return "";
  if (flags.workers.empty()) return "--workers is required";
  for (const std::string& worker : flags.workers) {
    if (worker.empty()) return "--workers has an empty address";
  }
  if (const absl::Status status = Listener::CheckAddress(flags.listen); !status.ok()) {
    return absl::StrCat("--listen: ", status.message());
  }
  if (const absl::Status status = Listener::CheckAddress(flags.admin_listen); !status.ok()) {
    return absl::StrCat("--admin-listen: ", status.message());
  }
  const uint32_t tp = TensorParallelSize(flags);
  const uint32_t pp = flags.pipeline_parallel_size;
  if (tp == 0 || tp * pp != flags.workers.size()) {
    return absl::StrCat("--workers names ", flags.workers.size(), " ranks, but ", pp,
                        pp == 1 ? " stage" : " stages", " (--pipeline-parallel-size)",
                        flags.tensor_parallel_size != 0
                            ? absl::StrCat(" of ", tp, " (--tensor-parallel-size) need ", tp * pp)
                            : " need a multiple of that");
  }
  if (tp > 8) {
    return absl::StrCat("--workers names ", tp, " ranks for a stage, at most 8 work together");
  }
  if (!flags.stage_layers.empty() && flags.stage_layers.size() != pp) {
    return absl::StrCat("--stage-layers has ", flags.stage_layers.size(),
                        " numbers, but --pipeline-parallel-size is ", pp);
  }
  const uint32_t most_plans = pp == 1 ? 2 : pp + 1;
  if (flags.max_plans_in_flight > most_plans) {
    return absl::StrCat("--max-plans-in-flight is ", flags.max_plans_in_flight, ", with ", pp,
                        pp == 1 ? " stage" : " stages", " at most ", most_plans);
  }
  if (!base::IsValidUtf8(flags.model_name)) return "--model-name is not UTF-8";
  if (flags.max_batch_seqs > flags.max_batch_tokens) {
    return absl::StrCat("--max-batch-seqs ", flags.max_batch_seqs,
                        " is more than --max-batch-tokens ", flags.max_batch_tokens,
                        ": every sequence takes a token of a step");
  }
  if (!base::IsValidToken(base::ClusterToken())) {
    return absl::StrCat(base::kClusterTokenVariable,
                        " must be of printable ASCII characters without spaces");
  }
  return "";
}

absl::Duration InterTokenTarget(const Flags& flags) {
  if (flags.inter_token_target_s >= 0) return absl::Seconds(flags.inter_token_target_s);
  if (flags.profile == "throughput") return absl::ZeroDuration();
  return flags.profile == "latency" ? absl::Milliseconds(50) : absl::Milliseconds(100);
}

uint64_t RandomBits() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// The date at the start, moved on by the steady clock: a clock that is set while streams run would
// make deadlines pass, or never come.
std::function<absl::Time()> MakeClock() {
  const absl::Time start = absl::Now();
  const auto steady_start = std::chrono::steady_clock::now();
  return [start, steady_start] {
    return start + absl::FromChrono(std::chrono::steady_clock::now() - steady_start);
  };
}

// On stdout, for `shoalctl serve` or whoever else runs the ranks. Never waits for the reader.
void ReportHungRank(uint32_t rank, uint32_t pid) {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  if (poll(&out, 1, 0) != 1 || (out.revents & (POLLERR | POLLHUP)) != 0) return;
  const std::string line = absl::StrFormat("HUNG rank=%d pid=%d\n", rank, pid);
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) PLOG(WARNING) << "stdout";
}

GroupShellOptions MakeShellOptions(const Flags& flags, std::function<absl::Time()> clock,
                                   Health* health) {
  GroupShellOptions options;
  options.addresses = flags.workers;
  options.group.tensor_parallel_size = TensorParallelSize(flags);
  options.group.pipeline_parallel_size = flags.pipeline_parallel_size;
  options.group.version = SHOAL_VERSION;
  options.group.protocol_version = base::kProtocolVersion;
  options.group.min_step_timeout = absl::Seconds(flags.step_timeout_s);
  options.group.warmup_step_timeout =
      std::max(options.group.warmup_step_timeout, options.group.min_step_timeout);
  options.group.recovery_timeout = absl::Seconds(flags.recovery_timeout_s);
  options.scheduler.max_prefill_chunk = flags.max_prefill_chunk;
  options.scheduler.max_queued_requests = flags.max_queued_requests;
  options.scheduler.max_plans_in_flight = MaxPlansInFlight(flags);
  options.scheduler.enable_prefix_cache = !flags.no_prefix_cache;
  options.inter_token_target = InterTokenTarget(flags);
  options.load.set_tensor_parallel_size(options.group.tensor_parallel_size);
  options.load.set_pipeline_parallel_size(options.group.pipeline_parallel_size);
  options.load.mutable_stage_layers()->Assign(flags.stage_layers.begin(), flags.stage_layers.end());
  options.load.set_kv_cache_bytes(flags.kv_cache_bytes);
  options.load.set_kv_cache_dtype(flags.kv_cache_dtype);
  options.load.set_max_batch_tokens(flags.max_batch_tokens);
  options.load.set_max_batch_seqs(flags.max_batch_seqs);
  options.load.set_max_seq_len(flags.max_seq_len);
  options.model_name = flags.model_name;
  options.owner_id = absl::StrFormat("router-%d-%016x", getpid(), RandomBits());
  options.token = base::ClusterToken();
  options.take_over = flags.take_over;
  options.clock = std::move(clock);
  options.random = RandomBits;
  options.on_hung_rank = ReportHungRank;
  options.on_readiness = [health](bool is_ready) { health->SetEngineReady(is_ready); };
  return options;
}

int Fail(const absl::Status& status) {
  LOG(ERROR) << status.message();
  std::cerr << "error: " << status.message() << "\n";
  return 1;
}

// What the process's end was, told and as its exit code.
int ExitCode(const absl::Status& started, bool is_drained, const Flags& flags) {
  if (!started.ok() && !absl::IsCancelled(started)) return Fail(started);
  if (!is_drained) {
    return Fail(absl::DeadlineExceededError(absl::StrCat(
        "requests were ended that outlasted --drain-timeout ", flags.drain_timeout_s)));
  }
  LOG(INFO) << "stopped";
  return 0;
}

// Null if nothing is to be recorded.
absl::StatusOr<std::unique_ptr<HistoryRecorder>> MakeRecorder(const Flags& flags,
                                                              const GroupShellOptions& options) {
  if (flags.record.empty()) return nullptr;
  history::v1::Header header = ToProto({.group = options.group,
                                        .scheduler = options.scheduler,
                                        .inter_token_target = options.inter_token_target});
  header.set_format(kHistoryFormat);
  header.set_version(SHOAL_VERSION);
  return HistoryRecorder::Create(flags.record, flags.record_limit, header);
}

int RunReplay(const std::string& path) {
  const absl::StatusOr<ReplayResult> result = Replay(path);
  if (!result.ok()) {
    std::cerr << "error: " << result.status().message() << "\n";
    return 1;
  }
  std::cout << "replayed " << result->num_records << " records: " << result->num_requests
            << " requests, " << result->num_plans << " plans"
            << (result->is_truncated ? "; the file ends in the middle of a record" : "") << "\n";
  if (result->difference.empty()) {
    std::cout << "every plan is as recorded\n";
    return 0;
  }
  std::cerr << "error: record " << result->num_records << ", " << result->difference << "\n";
  return 1;
}

int Serve(const Flags& flags) {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const std::function<absl::Time()> clock = MakeClock();
  Health health;
  GroupShellOptions shell_options = MakeShellOptions(flags, clock, &health);
  absl::StatusOr<std::unique_ptr<HistoryRecorder>> recorder = MakeRecorder(flags, shell_options);
  if (!recorder.ok()) return Fail(recorder.status());
  GroupShell shell(std::move(shell_options), *std::move(recorder));
  RouterServer::Options options;
  options.listen = flags.listen;
  options.admin_listen = flags.admin_listen;
  options.version = SHOAL_VERSION;
  // Listens from now on, so that probes and operators can watch the model load.
  auto server = RouterServer::Start(options, &shell, &health, clock, RandomBits);
  if (!server.ok()) return Fail(server.status());
  base::SignalWatcher watcher([&] {
    (*server)->StartDraining("the router was told to stop");
    shell.AbandonWait();
  });

  bool is_drained = true;
  const absl::Status started = shell.WaitUntilReady(absl::Seconds(flags.startup_timeout_s));
  if (started.ok()) {
    std::printf("READY listen=%s admin=%s\n", (*server)->address().c_str(),
                (*server)->admin_address().c_str());
    std::fflush(stdout);
    watcher.Wait();
    is_drained = (*server)->FinishDraining(absl::Seconds(flags.drain_timeout_s));
  }
  (*server)->EndRequests();
  shell.Stop();
  // Connections end with the process: see EndRequests.
  _exit(ExitCode(started, is_drained, flags));
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Routes requests to the ranks of a worker group.", "shoal-router");
  app.set_version_flag("--version", "shoal-router " SHOAL_VERSION);
  AddFlags(&app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (const std::string message = FindContradiction(flags); !message.empty()) {
    std::cerr << "error: " << message << "\n";
    return kExitUsage;
  }
  if (!flags.replay.empty()) return RunReplay(flags.replay);
  signal(SIGPIPE, SIG_IGN);  // of whoever reads the log, or READY
  base::SignalWatcher::Block();
  base::RaiseFileLimit();
  google::InitGoogleLogging(argv[0]);
  const base::StderrSink log;
  TakeLibraryLogs();
  if (flags.parent_pid != 0) {
    const absl::Status followed = base::FollowParent(flags.parent_pid, SIGTERM);
    if (!followed.ok()) return Fail(followed);
  }
  return Serve(flags);
}

}  // namespace
}  // namespace shoal::router

int main(int argc, char** argv) { return shoal::router::Main(argc, argv); }
