#include "worker/rank_service.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/cluster_token.h"
#include "base/protocol_version.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "kernels/quant/kv_type.h"
#include "parallel/topology.h"
#include "worker/connect_peers.h"
#include "worker/model_description.h"
#include "worker/plan_codec.h"

namespace shoal::worker {
namespace {

constexpr size_t kDescriptionChunk = 1 << 20;
constexpr uint32_t kMaxTracedSteps = 1000;
constexpr absl::Duration kMaxTraceTime = absl::Minutes(10);
// Of a router that joined: it opens its stream when all ranks have.
constexpr absl::Duration kOpenTimeout = absl::Seconds(10);

grpc::Status ToGrpc(const absl::Status& status) {
  // absl's codes are gRPC's.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

std::string NewInstanceId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x", random(), random());
}

absl::StatusOr<parallel::Topology> TopologyOf(const v1::LoadShardRequest& request) {
  constexpr uint32_t kMost = parallel::Topology::kMaxRanks;
  SHOAL_ASSIGN_OR_RETURN(
      const parallel::Topology topology,
      parallel::Topology::Create(
          static_cast<int>(std::clamp(request.tensor_parallel_size(), 1u, kMost + 1)),
          static_cast<int>(std::clamp(request.pipeline_parallel_size(), 1u, kMost + 1))));
  if (request.rank() >= static_cast<uint32_t>(topology.world_size())) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", request.rank(), " is not in 0..",
                                                   topology.world_size() - 1, " of ", topology.pp,
                                                   " stages of ", topology.tp, " shards"));
  }
  return topology;
}

std::string EpochName(const v1::Epoch& epoch) {
  return base::EpochName(epoch.owner_id(), epoch.counter());
}

template <typename Message>
void FillPosition(const RankEngine& engine, Message* message) {
  const RankEngine::Position position = engine.position();
  message->set_step(position.step);
  message->set_op(position.op);
  message->set_collective(position.operations);
  if (position.waiting_for >= 0) message->set_waiting_for_rank(position.waiting_for);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankService>> RankService::Create(RankOptions options) {
  SHOAL_ASSIGN_OR_RETURN(auto file,
                         model::GgufFile::Open(options.model_path, model::FileBytes::Mode::kMap));
  SHOAL_ASSIGN_OR_RETURN(const v1::ModelDescription description, DescribeModel(*file));
  SHOAL_ASSIGN_OR_RETURN(const auto backend, options.new_backend());
  std::unique_ptr<RankService> service(new RankService(std::move(options)));
  service->description_ = description.SerializeAsString();
  service->fingerprint_ = file->Fingerprint();
  service->backend_name_ = std::string(backend->name());
  service->backend_numerics_id_ = std::string(backend->numerics_id());
  return service;
}

RankService::RankService(RankOptions options)
    : options_(std::move(options)), instance_id_(NewInstanceId()) {}

absl::StatusOr<std::unique_ptr<model::GgufFile>> RankService::OpenModel() const {
  SHOAL_ASSIGN_OR_RETURN(auto file,
                         model::GgufFile::Open(options_.model_path, model::FileBytes::Mode::kMap));
  SHOAL_RETURN_IF_ERROR(CheckUnchanged(*file));
  return file;
}

absl::Status RankService::CheckUnchanged(const model::GgufFile& file) const {
  if (file.Fingerprint() == fingerprint_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("the model file %s has changed since this rank started: its fingerprint was "
                      "%016x and is %016x; start the rank again to serve the new one",
                      options_.model_path, fingerprint_, file.Fingerprint()));
}

std::shared_ptr<RankEngine> RankService::engine() const {
  base::MutexLock lock(&mutex_);
  return engine_;
}

grpc::Status RankService::CheckCaller(const grpc::ServerContext& context) const {
  if (options_.token.empty()) return grpc::Status::OK;
  const auto& metadata = context.client_metadata();
  const auto token = metadata.find(base::kClusterTokenKey);
  if (token != metadata.end() &&
      base::EqualTokens(absl::string_view(token->second.data(), token->second.size()),
                        options_.token)) {
    return grpc::Status::OK;
  }
  return grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                      absl::StrCat("the caller has ", token == metadata.end() ? "no" : "another",
                                   " cluster token: give the router and its ranks the same ",
                                   base::kClusterTokenVariable));
}

void RankService::AttachHealth(grpc::HealthCheckServiceInterface* health) {
  base::MutexLock lock(&mutex_);
  health_ = health;
  SetEpoch(v1::Epoch(epoch_));
}

void RankService::SetEpoch(const v1::Epoch& epoch) {
  epoch_ = epoch;
  if (health_ != nullptr) health_->SetServingStatus("readiness", epoch_.counter() != 0);
}

grpc::Status RankService::GetWorkerInfo(grpc::ServerContext* context,
                                        const v1::GetWorkerInfoRequest*,
                                        v1::GetWorkerInfoResponse* response) {
  if (const grpc::Status allowed = CheckCaller(*context); !allowed.ok()) return allowed;
  response->set_worker_id(options_.worker_id);
  response->set_instance_id(instance_id_);
  response->set_version(options_.version);
  response->set_protocol_version(base::kProtocolVersion);
  response->set_backend(backend_name_);
  response->set_pid(static_cast<uint32_t>(getpid()));
  response->set_model_fingerprint(fingerprint_);
  base::MutexLock lock(&mutex_);
  response->set_numerics_id(engine_ == nullptr ? backend_numerics_id_
                                               : engine_->model().numerics_id());
  response->set_highest_epoch(highest_epoch_);
  return grpc::Status::OK;
}

grpc::Status RankService::LoadShard(grpc::ServerContext* context,
                                    const v1::LoadShardRequest* request,
                                    grpc::ServerWriter<v1::LoadShardResponse>* writer) {
  if (const grpc::Status allowed = CheckCaller(*context); !allowed.ok()) return allowed;
  absl::Time last = absl::Now();
  const absl::Status status = Load(*request, [&](uint64_t done, uint64_t total) {
    if (absl::Now() - last < absl::Milliseconds(200)) return;
    last = absl::Now();
    v1::LoadShardResponse progress;
    progress.set_loaded_bytes(done);
    progress.set_total_bytes(total);
    writer->Write(progress);
  });
  if (!status.ok()) {
    LOG(ERROR) << "loading failed: " << status.message();
    return ToGrpc(status);
  }
  const std::shared_ptr<RankEngine> loaded = engine();
  const EngineLimits& limits = loaded->limits();
  v1::LoadShardResponse last_message;
  last_message.set_loaded_bytes(loaded->model().weight_bytes());
  last_message.set_total_bytes(loaded->model().weight_bytes());
  v1::ShardLimits* out = last_message.mutable_limits();
  out->set_num_blocks(limits.num_blocks);
  out->set_block_tokens(kernels::kPageTokens);
  out->set_max_batch_tokens(limits.max_batch_tokens);
  out->set_max_batch_seqs(limits.max_batch_seqs);
  out->set_max_seq_len(limits.max_seq_len);
  out->set_weight_bytes(loaded->model().weight_bytes());
  out->set_kv_cache_bytes(loaded->model().kv_bytes());
  out->set_workspace_bytes(loaded->model().workspace_bytes());
  writer->Write(last_message);
  return grpc::Status::OK;
}

absl::Status RankService::Load(const v1::LoadShardRequest& request,
                               const std::function<void(uint64_t done, uint64_t total)>& progress) {
  base::MutexLock run(&run_mutex_);
  const std::string key = request.SerializeAsString();
  {
    base::MutexLock lock(&mutex_);
    if (engine_ != nullptr && loaded_ == key) return absl::OkStatus();
    if (epoch_.counter() != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", options_.worker_id, " serves epoch ", EpochName(epoch_),
                       " with another shard; end that stream before loading again"));
    }
    engine_ = nullptr;
  }
  SHOAL_ASSIGN_OR_RETURN(const parallel::Topology topology, TopologyOf(request));
  const int rank = static_cast<int>(request.rank());
  RankModel::Options options;
  options.tp = topology.tp;
  options.shard = topology.shard_of(rank);
  options.pp = topology.pp;
  options.stage = topology.stage_of(rank);
  options.stage_layers.assign(request.stage_layers().begin(), request.stage_layers().end());
  options.kv_bytes = request.kv_cache_bytes();
  if (!request.kv_cache_dtype().empty()) {
    SHOAL_ASSIGN_OR_RETURN(options.kv_type, kernels::ParseKvType(request.kv_cache_dtype()));
  }
  options.max_batch_tokens = request.max_batch_tokens();
  options.max_batch_seqs = request.max_batch_seqs();
  options.max_seq_len = request.max_seq_len();
  SHOAL_ASSIGN_OR_RETURN(auto backend, options_.new_backend());
  const absl::Time start = absl::Now();
  SHOAL_ASSIGN_OR_RETURN(const auto file, OpenModel());
  SHOAL_ASSIGN_OR_RETURN(auto model, RankModel::Load(*file, options, std::move(backend), progress));
  SHOAL_RETURN_IF_ERROR(CheckUnchanged(*file));  // while it was read
  LOG(INFO) << "loaded " << options_.model_path << " as rank " << rank << " of "
            << topology.world_size() << " in " << absl::Now() - start << ": weights "
            << model->weight_bytes() / 1000000 << " MB, KV " << model->kv_bytes() / 1000000
            << " MB, workspace " << model->workspace_bytes() / 1000000 << " MB";
  auto engine = std::make_shared<RankEngine>(std::move(model));
  base::MutexLock lock(&mutex_);
  engine_ = std::move(engine);
  loaded_ = key;
  return absl::OkStatus();
}

grpc::Status RankService::GetModelDescription(
    grpc::ServerContext* context, const v1::GetModelDescriptionRequest*,
    grpc::ServerWriter<v1::GetModelDescriptionResponse>* writer) {
  if (const grpc::Status allowed = CheckCaller(*context); !allowed.ok()) return allowed;
  for (size_t begin = 0; begin < description_.size(); begin += kDescriptionChunk) {
    v1::GetModelDescriptionResponse response;
    response.set_chunk(description_.substr(begin, kDescriptionChunk));
    if (!writer->Write(response)) break;
  }
  return grpc::Status::OK;
}

grpc::Status RankService::JoinGroup(grpc::ServerContext* context,
                                    const v1::JoinGroupRequest* request, v1::JoinGroupResponse*) {
  if (const grpc::Status allowed = CheckCaller(*context); !allowed.ok()) return allowed;
  return ToGrpc(Join(*request));
}

absl::Status RankService::BeginEpoch(const v1::JoinGroupRequest& request,
                                     std::shared_ptr<parallel::CancelEvent>* cancel) {
  const v1::Epoch& epoch = request.epoch();
  base::MutexLock lock(&mutex_);
  if (engine_ == nullptr) {
    return absl::FailedPreconditionError("no shard is loaded; call LoadShard first");
  }
  if (epoch.counter() <= highest_epoch_) {
    return absl::AbortedError(
        absl::StrFormat("epoch %s is not above %d, the highest this rank has seen",
                        EpochName(epoch), highest_epoch_));
  }
  if (IsOwned() && owner_id_ != epoch.owner_id() && !request.take_over()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the rank is owned by %s, whose stream lives; stop that router or ask to "
                        "take over (--take-over)",
                        owner_id_));
  }
  highest_epoch_ = epoch.counter();
  owner_id_ = epoch.owner_id();
  SetEpoch({});
  stream_lives_ = false;
  stream_expected_until_ = absl::InfinitePast();
  if (joining_ != nullptr) joining_->Cancel();
  joining_ = *cancel = std::make_shared<parallel::CancelEvent>();
  joining_epoch_ = EpochName(epoch);
  return absl::OkStatus();
}

bool RankService::IsOwned() const {
  return stream_lives_ || joining_ != nullptr || absl::Now() < stream_expected_until_;
}

absl::Status RankService::Join(const v1::JoinGroupRequest& request) {
  std::shared_ptr<parallel::CancelEvent> cancel;
  SHOAL_RETURN_IF_ERROR(BeginEpoch(request, &cancel));
  const absl::Status status = JoinPeers(request, cancel);
  base::MutexLock lock(&mutex_);
  if (joining_ == cancel) joining_ = nullptr;
  return status;
}

absl::Status RankService::JoinPeers(const v1::JoinGroupRequest& request,
                                    const std::shared_ptr<parallel::CancelEvent>& cancel) {
  const std::shared_ptr<RankEngine> joined = engine();
  joined->Abort(absl::AbortedError(
      absl::StrCat("epoch ", EpochName(request.epoch()), " replaces the one that ran")));
  base::MutexLock run(&run_mutex_);
  joined->EndEpoch();
  SHOAL_ASSIGN_OR_RETURN(OwnedPeers peers,
                         ConnectPeers(request, joined->model(),
                                      {.cancel_fd = cancel->fd(), .allow_spin = options_.spin}));
  joined->StartEpoch(std::move(peers));
  SHOAL_RETURN_IF_ERROR(joined->WarmUp());
  base::MutexLock lock(&mutex_);
  if (joining_ != cancel) {
    return absl::AbortedError(
        absl::StrCat("epoch ", EpochName(request.epoch()), " was aborted while it was joined"));
  }
  joining_ = nullptr;
  SetEpoch(request.epoch());
  stream_expected_until_ = absl::Now() + kOpenTimeout;
  LOG(INFO) << "joined epoch " << EpochName(epoch_);
  return absl::OkStatus();
}

grpc::Status RankService::AbortGroup(grpc::ServerContext* context,
                                     const v1::AbortGroupRequest* request,
                                     v1::AbortGroupResponse* response) {
  if (const grpc::Status allowed = CheckCaller(*context); !allowed.ok()) return allowed;
  const std::shared_ptr<RankEngine> aborted = engine();
  if (aborted == nullptr) return grpc::Status::OK;
  {
    base::MutexLock lock(&mutex_);
    if (joining_ != nullptr && EpochName(request->epoch()) == joining_epoch_) {
      joining_->Cancel();
      joining_ = nullptr;
    } else if (EpochName(request->epoch()) != EpochName(epoch_)) {
      return grpc::Status(grpc::StatusCode::ABORTED,
                          absl::StrCat("epoch ", EpochName(request->epoch()),
                                       " is not the joined one, ", EpochName(epoch_)));
    }
  }
  FillPosition(*aborted, response->mutable_position());
  aborted->Abort(absl::AbortedError(absl::StrCat("the router aborted: ", request->reason())));
  return grpc::Status::OK;
}

grpc::Status RankService::Trace(grpc::ServerContext* context, const v1::TraceRequest* request,
                                v1::TraceResponse* response) {
  if (const grpc::Status allowed = CheckCaller(*context); !allowed.ok()) return allowed;
  const std::shared_ptr<RankEngine> traced = engine();
  if (traced == nullptr) {
    return ToGrpc(absl::FailedPreconditionError("no shard is loaded"));
  }
  if (request->steps() == 0 || request->steps() > kMaxTracedSteps) {
    return ToGrpc(absl::InvalidArgumentError(
        absl::StrCat("steps is ", request->steps(), "; expected 1..", kMaxTracedSteps)));
  }
  const absl::Duration timeout =
      absl::Seconds(request->timeout().seconds()) + absl::Nanoseconds(request->timeout().nanos());
  auto spans = traced->Trace(request->steps(), std::min(timeout, kMaxTraceTime),
                             [context] { return context->IsCancelled(); });
  if (!spans.ok()) return ToGrpc(spans.status());
  shoal::v1::ProcessTrace* trace = response->mutable_trace();
  trace->set_process(options_.worker_id);
  trace->set_pid(static_cast<uint32_t>(getpid()));
  for (std::string& name : traced->span_names()) trace->add_span_names(std::move(name));
  // An op ends before its step: by begin the order is the header's.
  std::stable_sort(spans->begin(), spans->end(), [](const base::Span& a, const base::Span& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  trace->set_origin_unix_ns(spans->empty() ? 0 : spans->front().begin_ns);
  for (const base::Span& span : *spans) {
    shoal::v1::StepSpan* out = trace->add_spans();
    out->set_step(span.step);
    out->set_name(span.name);
    out->set_begin_ns(span.begin_ns - trace->origin_unix_ns());
    out->set_duration_ns(span.end_ns - span.begin_ns);
  }
  return grpc::Status::OK;
}

grpc::Status RankService::Inspect(grpc::ServerContext* context, const v1::InspectRequest*,
                                  v1::InspectResponse* response) {
  if (const grpc::Status allowed = CheckCaller(*context); !allowed.ok()) return allowed;
  response->set_unix_ns(base::UnixNanos());
  const std::shared_ptr<RankEngine> inspected = engine();
  if (inspected == nullptr) {
    response->set_state("no shard loaded");
    return grpc::Status::OK;
  }
  FillPosition(*inspected, response->mutable_position());
  response->set_steps_done(inspected->steps_done());
  base::MutexLock lock(&mutex_);
  response->set_state(epoch_.counter() == 0 ? "loaded"
                                            : absl::StrCat("in epoch ", EpochName(epoch_)));
  return grpc::Status::OK;
}

absl::StatusOr<std::string> RankService::StreamOpened(const grpc::ServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(base::kEpochKey);
  if (found == metadata.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the stream does not say its epoch in ", base::kEpochKey));
  }
  std::string name(found->second.data(), found->second.size());
  base::MutexLock lock(&mutex_);
  if (epoch_.counter() == 0 || name != EpochName(epoch_)) {
    return absl::AbortedError(
        absl::StrCat("a stream of epoch ", name, ", but ",
                     epoch_.counter() == 0 ? "none is joined" : EpochName(epoch_)));
  }
  stream_lives_ = true;
  return name;
}

absl::Status RankService::RunStep(const v1::StepPlan& message, const std::string& stream_epoch,
                                  v1::ExecuteResponse* response) {
  base::MutexLock run(&run_mutex_);
  std::shared_ptr<RankEngine> running;
  {
    base::MutexLock lock(&mutex_);
    const std::string name = EpochName(message.epoch());
    if (epoch_.counter() == 0 || name != EpochName(epoch_) || name != stream_epoch) {
      return absl::AbortedError(
          absl::StrCat("plan of epoch ", name, " on the stream of ", stream_epoch, ", but ",
                       epoch_.counter() == 0 ? "none is joined" : EpochName(epoch_)));
    }
    running = engine_;
  }
  base::SpanRecorder* const recorder = running->recorder();
  const base::RecordedStep recorded(recorder, message.step());
  const bool is_recording = recorder->is_recording();
  const int64_t received_ns = is_recording ? base::UnixNanos() : 0;
  base::StepPlan plan;
  SHOAL_RETURN_IF_ERROR(DecodePlan(message, &plan));
  if (is_recording) recorder->Add(RankEngine::kReceive, received_ns, base::UnixNanos());
  StepOutcome outcome;
  SHOAL_RETURN_IF_ERROR(running->Step(plan, &outcome));
  const int64_t done_ns = is_recording ? base::UnixNanos() : 0;
  response->Clear();
  *response->mutable_epoch() = message.epoch();
  response->set_step(message.step());
  response->set_state_hash(outcome.state_hash);
  response->set_token_hash(outcome.token_hash);
  if (running->model().shard() == 0 && running->model().is_last_stage()) {
    for (const base::RowOutput& output : outcome.outputs) {
      EncodeOutput(output, response->add_outputs());
    }
  }
  response->mutable_timings()->set_compute_ns(outcome.compute_ns);
  response->mutable_timings()->set_wait_peers_ns(outcome.wait_peers_ns);
  response->mutable_timings()->set_sample_ns(outcome.sample_ns);
  if (is_recording) recorder->Add(RankEngine::kReply, done_ns, base::UnixNanos());
  return absl::OkStatus();
}

void RankService::StreamEnded(const std::string& stream_epoch) {
  const std::shared_ptr<RankEngine> ended = engine();
  if (ended == nullptr) return;
  {
    base::MutexLock lock(&mutex_);
    if (stream_epoch.empty() || stream_epoch != EpochName(epoch_)) return;
    stream_lives_ = false;
    stream_expected_until_ = absl::InfinitePast();
    SetEpoch({});
  }
  base::MutexLock run(&run_mutex_);
  ended->EndEpoch();
  LOG(INFO) << "the stream of epoch " << stream_epoch << " ended";
}

void RankService::Abort(const absl::Status& why) {
  {
    base::MutexLock lock(&mutex_);
    if (joining_ != nullptr) joining_->Cancel();
  }
  if (const std::shared_ptr<RankEngine> aborted = engine(); aborted != nullptr) {
    aborted->Abort(why);
  }
}

}  // namespace shoal::worker
