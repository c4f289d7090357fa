#include "router/admin_service.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread/mutex.h"
#include "router/answer_call.h"
#include "router/proto_time.h"
#include "router/rpc_status.h"
#include "router/wire.h"

namespace shoal::router {
namespace {

v1::WorkerState ToWorkerState(RankState state) {
  switch (state) {
    case RankState::kConnecting:
      return v1::WORKER_STATE_CONNECTING;
    case RankState::kLoading:
      return v1::WORKER_STATE_LOADING;
    case RankState::kJoining:
      return v1::WORKER_STATE_JOINING;
    case RankState::kReady:
      return v1::WORKER_STATE_READY;
    case RankState::kFailed:
      return v1::WORKER_STATE_FAILED;
  }
  return v1::WORKER_STATE_UNSPECIFIED;
}

void FillWorker(const RankStatus& rank, v1::Worker* worker) {
  worker->set_worker_id(rank.worker_id);
  worker->set_address(rank.address);
  worker->set_rank(rank.rank);
  worker->set_state(ToWorkerState(rank.state));
  worker->set_state_reason(rank.state_reason);
  worker->set_backend(rank.backend);
  worker->set_version(rank.version);
  worker->set_pid(rank.pid);
  worker->set_load_bytes_done(rank.load_bytes_done);
  worker->set_load_bytes_total(rank.load_bytes_total);
  worker->set_weight_bytes(rank.weight_bytes);
  worker->set_kv_cache_bytes(rank.kv_cache_bytes);
  ToProto(rank.compute_time, worker->mutable_compute_time());
  ToProto(rank.wait_peers_time, worker->mutable_wait_peers_time());
}

constexpr uint32_t kMaxTracedSteps = 1000;
constexpr absl::Duration kDefaultTraceTime = absl::Seconds(30);
constexpr absl::Duration kMaxTraceTime = absl::Minutes(10);

absl::Status CheckTrace(const v1::TraceStepsRequest& request, absl::Duration timeout) {
  if (request.steps() < 1 || request.steps() > kMaxTracedSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps is ", request.steps(), "; expected 1..", kMaxTracedSteps));
  }
  if (timeout <= absl::ZeroDuration() || timeout > kMaxTraceTime) {
    return absl::InvalidArgumentError(absl::StrCat("timeout is ", absl::FormatDuration(timeout),
                                                   "; expected more than 0 and at most ",
                                                   absl::FormatDuration(kMaxTraceTime)));
  }
  return absl::OkStatus();
}

// Waits for the engine. Deletes itself when gRPC is done with it.
class TraceCall final : public grpc::ServerUnaryReactor {
 public:
  TraceCall(Engine* engine, grpc::CallbackServerContext* call) : engine_(engine), call_(call) {}

  void Begin(const grpc::ByteBuffer& bytes, grpc::ByteBuffer* response) {
    v1::TraceStepsRequest request;
    absl::Status status = ParseMessage(bytes, &request);
    const absl::Duration timeout = request.has_timeout()
                                       ? absl::Seconds(request.timeout().seconds()) +
                                             absl::Nanoseconds(request.timeout().nanos())
                                       : kDefaultTraceTime;
    if (status.ok()) status = CheckTrace(request, timeout);
    if (!status.ok()) {
      Finish(ToGrpcStatus(status, call_));
      return;
    }
    Engine* const engine = engine_;  // this may be gone when TraceSteps returns
    auto cancelled = cancelled_;
    const uint64_t id = engine->TraceSteps(
        request.steps(), timeout,
        [this, response](const absl::Status& result, v1::TraceStepsResponse* traces) {
          if (result.ok()) SerializeMessage(*traces, response);
          Finish(ToGrpcStatus(result, call_));
        });
    if (id == 0) return;
    base::MutexLock lock(&cancelled->mutex);
    cancelled->trace = id;
    if (cancelled->is_cancelled) engine->AbandonTrace(id);
  }

  void OnCancel() override {
    base::MutexLock lock(&cancelled_->mutex);
    cancelled_->is_cancelled = true;
    if (cancelled_->trace != 0) engine_->AbandonTrace(cancelled_->trace);
  }
  void OnDone() override { delete this; }

 private:
  struct Cancelled {
    base::Mutex mutex;
    bool is_cancelled ABSL_GUARDED_BY(mutex) = false;
    uint64_t trace ABSL_GUARDED_BY(mutex) = 0;
  };

  Engine* const engine_;
  grpc::CallbackServerContext* const call_;
  const std::shared_ptr<Cancelled> cancelled_ = std::make_shared<Cancelled>();
};

}  // namespace

grpc::ServerUnaryReactor* AdminService::GetClusterStatus(grpc::CallbackServerContext* call,
                                                         const grpc::ByteBuffer* request_bytes,
                                                         grpc::ByteBuffer* response_bytes) {
  return Answer<v1::GetClusterStatusRequest>(
      context_, call, request_bytes, response_bytes,
      [this](const v1::GetClusterStatusRequest& request)
          -> absl::StatusOr<v1::GetClusterStatusResponse> {
        v1::GetClusterStatusResponse response;
        const EngineStatus status = context_.engine->status();
        const std::shared_ptr<const ServedModel> model = context_.engine->model();
        response.set_version(version_);
        ToProto(context_.clock() - started_, response.mutable_uptime());
        response.set_draining_reason(context_.requests->draining_reason());
        response.set_ready(response.draining_reason().empty() && context_.engine->Readiness().ok());
        if (model != nullptr) response.set_model(model->name);
        response.set_tensor_parallel_size(status.tensor_parallel_size);
        response.set_pipeline_parallel_size(status.pipeline_parallel_size);
        response.set_epoch(status.epoch);
        response.set_queued_requests(status.scheduler.num_queued);
        response.set_running_requests(status.scheduler.num_running);
        response.set_blocks_free(status.scheduler.num_free_blocks);
        response.set_blocks_held(status.scheduler.num_held_blocks);
        response.set_blocks_cached(status.scheduler.num_cached_blocks);
        response.set_blocks_total(status.num_blocks);
        response.set_steps(status.num_steps);
        response.set_prompt_tokens(status.num_prompt_tokens);
        ToProto(status.step_time, response.mutable_step_time());
        response.set_step_prediction_error(status.prediction_error);
        response.set_generated_tokens(status.num_generated_tokens);
        response.set_cached_tokens(status.scheduler.num_prefix_hits);
        response.set_preemptions(status.scheduler.num_preemptions);
        response.set_finished_requests(status.num_finished);
        response.set_rejected_requests(status.num_rejected);
        return response;
      });
}

grpc::ServerUnaryReactor* AdminService::ListWorkers(grpc::CallbackServerContext* call,
                                                    const grpc::ByteBuffer* request_bytes,
                                                    grpc::ByteBuffer* response_bytes) {
  return Answer<v1::ListWorkersRequest>(
      context_, call, request_bytes, response_bytes,
      [this](const v1::ListWorkersRequest& request) -> absl::StatusOr<v1::ListWorkersResponse> {
        v1::ListWorkersResponse response;
        for (const RankStatus& rank : context_.engine->status().ranks) {
          FillWorker(rank, response.add_workers());
        }
        return response;
      });
}

grpc::ServerUnaryReactor* AdminService::ListRequests(grpc::CallbackServerContext* call,
                                                     const grpc::ByteBuffer* request_bytes,
                                                     grpc::ByteBuffer* response_bytes) {
  return Answer<v1::ListRequestsRequest>(
      context_, call, request_bytes, response_bytes,
      [this](const v1::ListRequestsRequest& request) -> absl::StatusOr<v1::ListRequestsResponse> {
        v1::ListRequestsResponse response;
        for (const RunningRequests::Entry& entry : context_.requests->List()) {
          const ValidRequest& valid = entry.stream->request();
          const RequestStream::Progress progress = entry.stream->progress();
          v1::ActiveRequest* active = response.add_requests();
          active->set_request_id(valid.request_id);
          active->set_model(entry.stream->model().name);
          ToProto(valid.arrival, active->mutable_arrive_time());
          active->set_prompt_tokens(static_cast<uint32_t>(valid.prompt.size()));
          active->set_generated_tokens(progress.num_generated_tokens);
          active->set_queued(progress.is_queued);
          active->set_peer(entry.peer);
        }
        return response;
      });
}

grpc::ServerUnaryReactor* AdminService::CancelRequest(grpc::CallbackServerContext* call,
                                                      const grpc::ByteBuffer* request_bytes,
                                                      grpc::ByteBuffer* response_bytes) {
  return Answer<v1::CancelRequestRequest>(
      context_, call, request_bytes, response_bytes,
      [this](const v1::CancelRequestRequest& request) -> absl::StatusOr<v1::CancelRequestResponse> {
        v1::CancelRequestResponse response;
        SHOAL_RETURN_IF_ERROR(context_.requests->Cancel(request.request_id(), request.reason()));
        return response;
      });
}

grpc::ServerUnaryReactor* AdminService::TraceSteps(grpc::CallbackServerContext* call,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* response) {
  auto* reactor = new TraceCall(context_.engine, call);  // deletes itself in OnDone
  reactor->Begin(*request, response);
  return reactor;
}

}  // namespace shoal::router
