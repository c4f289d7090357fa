#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/thread/mutex.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "kernels/backend.h"
#include "model/formats/gguf.h"
#include "parallel/cancel_event.h"
#include "shoal/worker/v1/worker.grpc.pb.h"
#include "worker/engine/rank_engine.h"

namespace shoal::worker {

struct RankOptions {
  std::string worker_id;  // for people: "rank-0"
  std::string version;
  std::string model_path;
  std::string token;  // that callers must bring (base/cluster_token.h); empty: anybody may call
  bool spin = true;   // ranks have cores of their own: collectives may spin for a while
  std::function<absl::StatusOr<std::unique_ptr<kernels::Backend>>()> new_backend;
};

// The gRPC edge of a rank. Unary calls run on gRPC's own threads, so that AbortGroup and Inspect
// answer while the loop waits for a peer; Execute is served by ExecuteLoop on a completion queue.
//
// Life: LoadShard makes the engine, JoinGroup starts an epoch, Execute runs its plans; when the
// stream of the epoch ends, the epoch ends with it and only the weights stay.
class RankService final
    : public v1::WorkerService::WithAsyncMethod_Execute<v1::WorkerService::Service> {
 public:
  // Reads what the model file says of itself and closes it again. Errors: the file's.
  static absl::StatusOr<std::unique_ptr<RankService>> Create(RankOptions options);

  grpc::Status GetWorkerInfo(grpc::ServerContext*, const v1::GetWorkerInfoRequest*,
                             v1::GetWorkerInfoResponse* response) override;
  grpc::Status LoadShard(grpc::ServerContext*, const v1::LoadShardRequest* request,
                         grpc::ServerWriter<v1::LoadShardResponse>* writer) override;
  grpc::Status GetModelDescription(
      grpc::ServerContext*, const v1::GetModelDescriptionRequest*,
      grpc::ServerWriter<v1::GetModelDescriptionResponse>* writer) override;
  grpc::Status JoinGroup(grpc::ServerContext*, const v1::JoinGroupRequest* request,
                         v1::JoinGroupResponse*) override;
  grpc::Status AbortGroup(grpc::ServerContext*, const v1::AbortGroupRequest* request,
                          v1::AbortGroupResponse* response) override;
  grpc::Status Trace(grpc::ServerContext*, const v1::TraceRequest* request,
                     v1::TraceResponse* response) override;
  grpc::Status Inspect(grpc::ServerContext*, const v1::InspectRequest*,
                       v1::InspectResponse* response) override;

  // From now on `health` says under "readiness" whether the rank has loaded, warmed up and joined
  // an epoch. (Its "" is liveness, which is gRPC's own.) REQUIRES: it outlives all calls.
  void AttachHealth(grpc::HealthCheckServiceInterface* health);

  // --- For the loop
  // ---------------------------------------------------------------------------------

  // UNAUTHENTICATED for a caller without the cluster's token. Every method begins with it.
  grpc::Status CheckCaller(const grpc::ServerContext& context) const;

  // A router opens the stream of the epoch that its metadata names, which is returned. From now on
  // that router owns the rank. ABORTED when the rank has not joined it.
  absl::StatusOr<std::string> StreamOpened(const grpc::ServerContext& context);
  // Runs one plan of that stream and fills `response`. ABORTED for a plan of another epoch, or when
  // another one was joined since; else RankEngine::Step's errors.
  absl::Status RunStep(const v1::StepPlan& plan, const std::string& stream_epoch,
                       v1::ExecuteResponse* response);
  // The stream of `stream_epoch` is gone: the epoch ends, if it still is the joined one.
  void StreamEnded(const std::string& stream_epoch);

  // Aborts what runs, for shutdown.
  void Abort(const absl::Status& why);

 private:
  explicit RankService(RankOptions options);
  // The model file, mapped. FAILED_PRECONDITION if it is no longer what Create() read.
  absl::StatusOr<std::unique_ptr<model::GgufFile>> OpenModel() const;
  absl::Status CheckUnchanged(const model::GgufFile& file) const;

  absl::Status Load(const v1::LoadShardRequest& request,
                    const std::function<void(uint64_t done, uint64_t total)>& progress);
  absl::Status Join(const v1::JoinGroupRequest& request);
  // From here on only the new epoch may go on: the old stream does not count, a join that still
  // waits ends. `cancel` ends the new one's wait for its peers.
  absl::Status BeginEpoch(const v1::JoinGroupRequest& request,
                          std::shared_ptr<parallel::CancelEvent>* cancel);
  // Whether its owner is at work: its stream lives, or is about to be opened.
  bool IsOwned() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status JoinPeers(const v1::JoinGroupRequest& request,
                         const std::shared_ptr<parallel::CancelEvent>& cancel);
  void SetEpoch(const v1::Epoch& epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<RankEngine> engine() const;

  const RankOptions options_;
  // Of the model file when Create() read it. The file is open only while it is loaded, and what a
  // step needs is copied then: it may be overwritten or truncated in place while it is served.
  std::string description_;  // v1::ModelDescription
  uint64_t fingerprint_ = 0;
  const std::string instance_id_;
  std::string backend_name_;  // set by Create
  std::string backend_numerics_id_;

  // One at a time: LoadShard, JoinGroup, a step. Taken by the loop once a step, contended only when
  // an epoch ends.
  base::Mutex run_mutex_;

  mutable base::Mutex mutex_;  // the fields below; never held across a step
  // Shared with calls of other threads (Abort, Inspect) that overlap a new LoadShard.
  std::shared_ptr<RankEngine> engine_ ABSL_GUARDED_BY(mutex_);
  std::string loaded_
      ABSL_GUARDED_BY(mutex_);               // the LoadShardRequest that made engine_, serialised
  v1::Epoch epoch_ ABSL_GUARDED_BY(mutex_);  // joined, counter 0: none
  uint64_t highest_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string owner_id_ ABSL_GUARDED_BY(mutex_);       // of the last epoch that was begun
  bool stream_lives_ ABSL_GUARDED_BY(mutex_) = false;  // that of epoch_
  // Until when the owner of an epoch that was just joined may take to open its stream.
  absl::Time stream_expected_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // The join that runs, or waits for one before it: ends its wait for peers. Shared by its thread
  // and those that cancel it.
  std::shared_ptr<parallel::CancelEvent> joining_ ABSL_GUARDED_BY(mutex_);
  std::string joining_epoch_ ABSL_GUARDED_BY(mutex_);
  grpc::HealthCheckServiceInterface* health_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace shoal::worker
