#include "cli/command_bench.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench_client.h"
#include "cli/exit_code.h"

namespace shoal::cli {
namespace {

// Warm-up requests have prompts that no measured one has (the shared prefix aside).
constexpr uint32_t kWarmupIndex = 1u << 31;

absl::Duration ProcessCpu() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

v1::GenerateRequest MakeRequest(const BenchFlags& flags, const BenchLoad& load, uint32_t index) {
  v1::GenerateRequest request;
  request.set_model(flags.model);
  const std::vector<uint32_t> ids = MakePrompt(load, index);
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(flags.output_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

// Empty if the load fits the model.
std::string FindMisfit(const BenchFlags& flags, const v1::ModelInfo& model) {
  const uint64_t num_tokens = uint64_t{flags.load.prompt_tokens} + flags.output_tokens;
  if (num_tokens > model.max_context_tokens()) {
    return absl::StrCat("--prompt-tokens ", flags.load.prompt_tokens, " and --output-tokens ",
                        flags.output_tokens, " are ", num_tokens, " together, but the context has ",
                        model.max_context_tokens());
  }
  if (flags.load.shared_prefix_tokens > flags.load.prompt_tokens) {
    return absl::StrCat("--shared-prefix ", flags.load.shared_prefix_tokens,
                        " is more than --prompt-tokens ", flags.load.prompt_tokens);
  }
  return "";
}

void ShowProgress(std::ostream* err, uint32_t num_done, uint32_t num_requests) {
  constexpr uint32_t kWidth = 40;
  const uint32_t filled = static_cast<uint32_t>(uint64_t{kWidth} * num_done / num_requests);
  *err << absl::StrFormat("\r[%s%s] %d/%d", std::string(filled, '#'),
                          std::string(kWidth - filled, ' '), num_done, num_requests)
       << (num_done == num_requests ? "\n" : "") << std::flush;
}

void WarmUp(const Session& session, const BenchFlags& flags, const BenchLoad& load,
            v1::InferenceService::Stub* stub) {
  BenchClient::Options options;
  options.num_requests = flags.warmup.value_or(flags.clients);
  options.timeout = session.timeout;
  options.make_request = [&](uint32_t index) {
    BenchLoad other = load;
    other.num_distinct = 0;
    return MakeRequest(flags, other, kWarmupIndex + index);
  };
  if (options.num_requests > 0) BenchClient(stub, options).RunClosedLoop(flags.clients);
}

BenchReport Measure(const Session& session, const BenchFlags& flags, const BenchLoad& load,
                    v1::InferenceService::Stub* stub) {
  BenchClient::Options options;
  options.num_requests = load.num_requests;
  options.timeout = session.timeout;
  options.make_request = [&](uint32_t index) { return MakeRequest(flags, load, index); };
  if (flags.show_progress) {
    options.on_progress = [&](uint32_t num_done) {
      ShowProgress(session.err, num_done, load.num_requests);
    };
  }
  BenchClient client(stub, options);
  const absl::Duration cpu_before = ProcessCpu();
  const auto start = std::chrono::steady_clock::now();
  if (flags.rate.has_value()) {
    client.RunOpenLoop(PoissonArrivals(load.num_requests, *flags.rate, load.seed));
  } else {
    client.RunClosedLoop(flags.clients);
  }
  const absl::Duration wall = absl::FromChrono(std::chrono::steady_clock::now() - start);
  return MakeReport(client.samples(), wall, ProcessCpu() - cpu_before);
}

}  // namespace

int RunBench(const Session& session, const BenchFlags& flags) {
  v1::GetModelRequest request;
  request.set_model(flags.model);
  v1::GetModelResponse response;
  const int code = CallUnary<v1::InferenceService>(
      session, session.server, &v1::InferenceService::Stub::GetModel, request, &response);
  if (code != kExitOk) return code;
  if (const std::string misfit = FindMisfit(flags, response.model()); !misfit.empty()) {
    return ReportUsage(session, misfit);
  }
  const auto channel = Connect(session.server);
  if (!channel.ok()) return ReportUnreachable(session, channel.status());
  const auto stub = v1::InferenceService::NewStub(*channel);
  BenchLoad load = flags.load;
  load.vocab_size = response.model().vocab_size();
  load.end_token_ids.assign(response.model().end_token_ids().begin(),
                            response.model().end_token_ids().end());
  if (load.vocab_size <= load.end_token_ids.size()) {
    return ReportError(session, kExitRuntime, "INTERNAL",
                       absl::StrCat("the model has a vocabulary of ", load.vocab_size, " tokens"));
  }
  WarmUp(session, flags, load, stub.get());
  BenchReport report = Measure(session, flags, load, stub.get());
  report.seed = load.seed;
  *session.out << (session.format == Format::kJson ? report.ToJson() : report.ToTable())
               << std::flush;
  if (report.cached_tokens > 0 && load.shared_prefix_tokens == 0 && load.num_distinct == 0) {
    *session.err << "warning: " << report.cached_tokens << " of " << report.prompt_tokens
                 << " prompt tokens were in the prefix cache: this load (--seed " << load.seed
                 << ") ran here before" << std::endl;
  }
  if (report.errors.empty()) return kExitOk;
  *session.err << "error: " << load.num_requests - report.num_succeeded << " of "
               << load.num_requests << " requests failed" << std::endl;
  return kExitRuntime;
}

}  // namespace shoal::cli
