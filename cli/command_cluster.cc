#include "cli/command_cluster.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "shoal/v1/admin.grpc.pb.h"
#include "shoal/v1/inference.grpc.pb.h"

namespace shoal::cli {
namespace {

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

std::string FormatSeconds(const google::protobuf::Duration& duration) {
  return absl::StrFormat("%.1fs", absl::ToDoubleSeconds(ToDuration(duration)));
}

// "12s", "3h5m": at most two units.
std::string FormatAge(absl::Duration age) {
  if (age < absl::Hours(1)) return absl::FormatDuration(absl::Trunc(age, absl::Seconds(1)));
  return absl::FormatDuration(absl::Trunc(age, absl::Minutes(1)));
}

std::string StateName(v1::WorkerState state) {
  const std::string name = v1::WorkerState_Name(state);
  if (name.empty()) return absl::StrCat(static_cast<int>(state));
  return absl::AsciiStrToLower(absl::StripPrefix(name, "WORKER_STATE_"));
}

std::string ReadyCell(const v1::GetClusterStatusResponse& cluster) {
  if (!cluster.draining_reason().empty()) {
    return absl::StrCat("draining: ", cluster.draining_reason());
  }
  return cluster.ready() ? "yes" : "no";
}

void PrintCluster(const v1::GetClusterStatusResponse& cluster, std::ostream* out) {
  Table table({"CLUSTER", ""});
  table.AddRow({"ready", ReadyCell(cluster)});
  table.AddRow({"model", cluster.model()});
  table.AddRow({"version", cluster.version()});
  table.AddRow({"uptime", FormatAge(ToDuration(cluster.uptime()))});
  table.AddRow(
      {"parallel", absl::StrFormat("tensor %d, pipeline %d", cluster.tensor_parallel_size(),
                                   cluster.pipeline_parallel_size())});
  table.AddRow({"epoch", absl::StrCat(cluster.epoch())});
  table.AddRow(
      {"requests", absl::StrFormat("%d running, %d queued, %d finished, %d rejected",
                                   cluster.running_requests(), cluster.queued_requests(),
                                   cluster.finished_requests(), cluster.rejected_requests())});
  table.AddRow({"tokens", absl::StrFormat("%d prompt, %d cached, %d generated in %d steps",
                                          cluster.prompt_tokens(), cluster.cached_tokens(),
                                          cluster.generated_tokens(), cluster.steps())});
  std::string step_time = FormatSeconds(cluster.step_time());
  if (cluster.step_prediction_error() > 0) {
    absl::StrAppendFormat(&step_time, ", predicted to within %.0f%%",
                          100 * cluster.step_prediction_error());
  }
  table.AddRow({"step time", step_time});
  table.AddRow({"blocks", absl::StrFormat("%d held, %d cached, %d free of %d",
                                          cluster.blocks_held(), cluster.blocks_cached(),
                                          cluster.blocks_free(), cluster.blocks_total())});
  table.AddRow({"preemptions", absl::StrCat(cluster.preemptions())});
  *out << table.ToString();
}

// Of the time with steps under way, the part in which the rank computed.
std::string BusyCell(const v1::Worker& worker, absl::Duration step_time) {
  if (step_time <= absl::ZeroDuration()) return "-";
  return absl::StrFormat("%.0f%%",
                         100 * absl::FDivDuration(ToDuration(worker.compute_time()), step_time));
}

void PrintWorkers(const std::vector<v1::Worker>& workers, absl::Duration step_time,
                  std::ostream* out) {
  Table table({"WORKER", "RANK", "STATE", "PID", "BACKEND", "WEIGHTS", "KV CACHE", "COMPUTE",
               "WAIT", "BUSY", "ADDRESS"});
  for (const v1::Worker& worker : workers) {
    std::string state = StateName(worker.state());
    if (worker.state() == v1::WORKER_STATE_LOADING && worker.load_bytes_total() > 0) {
      absl::StrAppend(&state, " ", 100 * worker.load_bytes_done() / worker.load_bytes_total(), "%");
    }
    table.AddRow({worker.worker_id(), absl::StrCat(worker.rank()), state,
                  absl::StrCat(worker.pid()), worker.backend(),
                  FormatBytes(static_cast<double>(worker.weight_bytes())),
                  FormatBytes(static_cast<double>(worker.kv_cache_bytes())),
                  FormatSeconds(worker.compute_time()), FormatSeconds(worker.wait_peers_time()),
                  BusyCell(worker, step_time), worker.address()});
  }
  *out << table.ToString();
  for (const v1::Worker& worker : workers) {  // too long for a column
    if (worker.state_reason().empty()) continue;
    *out << "\nrank " << worker.rank() << ": " << WithoutControls(worker.state_reason()) << "\n";
  }
}

}  // namespace

int RunStatus(const Session& session) {
  v1::GetClusterStatusResponse cluster;
  int code =
      CallUnary<v1::AdminService>(session, session.admin, &v1::AdminService::Stub::GetClusterStatus,
                                  v1::GetClusterStatusRequest(), &cluster);
  if (code != kExitOk) return code;
  v1::ListWorkersResponse list;
  code = CallUnary<v1::AdminService>(session, session.admin, &v1::AdminService::Stub::ListWorkers,
                                     v1::ListWorkersRequest(), &list);
  if (code != kExitOk) return code;
  std::vector<v1::Worker> workers(list.workers().begin(), list.workers().end());
  std::sort(workers.begin(), workers.end(),
            [](const v1::Worker& a, const v1::Worker& b) { return a.rank() < b.rank(); });
  if (session.format == Format::kJson) {
    v1::ListWorkersResponse sorted;
    sorted.mutable_workers()->Assign(workers.begin(), workers.end());
    // The list's own object has one field, "workers": its braces make room for another.
    const std::string list_json = ToJson(sorted);
    *session.out << "{\n \"cluster\": " << NestJson(ToJson(cluster)) << ",\n"
                 << absl::string_view(list_json).substr(list_json.find('\n') + 1);
  } else {
    PrintCluster(cluster, session.out);
    *session.out << "\n";
    PrintWorkers(workers, ToDuration(cluster.step_time()), session.out);
  }
  session.out->flush();
  return kExitOk;
}

int RunPs(const Session& session, absl::Time now) {
  v1::ListRequestsResponse response;
  const int code =
      CallUnary<v1::AdminService>(session, session.admin, &v1::AdminService::Stub::ListRequests,
                                  v1::ListRequestsRequest(), &response);
  if (code != kExitOk) return code;
  if (session.format == Format::kJson) {
    *session.out << ToJson(response) << std::flush;
    return kExitOk;
  }
  const auto arrival = [](const v1::ActiveRequest& request) {
    return absl::FromUnixSeconds(request.arrive_time().seconds()) +
           absl::Nanoseconds(request.arrive_time().nanos());
  };
  std::vector<v1::ActiveRequest> requests(response.requests().begin(), response.requests().end());
  std::stable_sort(requests.begin(), requests.end(),
                   [&](const auto& a, const auto& b) { return arrival(a) < arrival(b); });
  Table table({"REQUEST", "STATE", "AGE", "PROMPT", "GENERATED", "MODEL", "PEER"});
  for (const v1::ActiveRequest& request : requests) {
    table.AddRow({request.request_id(), request.queued() ? "queued" : "running",
                  FormatAge(std::max(absl::ZeroDuration(), now - arrival(request))),
                  absl::StrCat(request.prompt_tokens()), absl::StrCat(request.generated_tokens()),
                  request.model(), request.peer()});
  }
  *session.out << table.ToString() << std::flush;
  return kExitOk;
}

int RunCancel(const Session& session, const std::string& request_id, const std::string& reason) {
  v1::CancelRequestRequest request;
  request.set_request_id(request_id);
  request.set_reason(reason);
  v1::CancelRequestResponse response;
  const int code = CallUnary<v1::AdminService>(
      session, session.admin, &v1::AdminService::Stub::CancelRequest, request, &response);
  if (code != kExitOk) return code;
  *session.out << (session.format == Format::kJson ? ToJson(response)
                                                   : absl::StrCat("cancelled ", request_id, "\n"))
               << std::flush;
  return kExitOk;
}

int RunModels(const Session& session) {
  v1::ListModelsResponse response;
  const int code = CallUnary<v1::InferenceService>(session, session.server,
                                                   &v1::InferenceService::Stub::ListModels,
                                                   v1::ListModelsRequest(), &response);
  if (code != kExitOk) return code;
  if (session.format == Format::kJson) {
    *session.out << ToJson(response) << std::flush;
    return kExitOk;
  }
  Table table({"MODEL", "ARCHITECTURE", "QUANTIZATION", "CONTEXT", "VOCABULARY", "CHAT", "NUMERICS",
               "FINGERPRINT"});
  for (const v1::ModelInfo& model : response.models()) {
    table.AddRow({model.name(), model.architecture(), model.quantization(),
                  absl::StrCat(model.max_context_tokens()), absl::StrCat(model.vocab_size()),
                  model.has_chat_template() ? "yes" : "no", model.numerics_id(),
                  absl::StrFormat("%016x", model.fingerprint())});
  }
  *session.out << table.ToString() << std::flush;
  return kExitOk;
}

int RunHealth(const Session& session, const std::string& service) {
  using grpc::health::v1::HealthCheckResponse;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const int code = CallUnary<grpc::health::v1::Health>(
      session, session.server, &grpc::health::v1::Health::Stub::Check, request, &response);
  if (code != kExitOk) return code;
  if (session.format == Format::kJson) {
    *session.out << ToJson(response) << std::flush;
  } else {
    *session.out << HealthCheckResponse::ServingStatus_Name(response.status()) << std::endl;
  }
  return response.status() == HealthCheckResponse::SERVING ? kExitOk : kExitUnhealthy;
}

}  // namespace shoal::cli
