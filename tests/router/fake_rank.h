#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/state_hash.h"
#include "base/thread/mutex.h"
#include "grpcpp/server.h"
#include "shoal/worker/v1/worker.grpc.pb.h"

namespace shoal::router {

// A rank process without a model, served over a real socket. It keeps the logs that plans bring and
// samples NextToken, so what a request must generate is known whatever happens to the group.
class FakeRank final : public worker::v1::WorkerService::Service {
 public:
  struct Options {
    std::string version = "v1";
    uint64_t fingerprint = 42;
    uint32_t num_blocks = 32;
    uint32_t max_batch_tokens = 64;
    uint32_t max_batch_seqs = 4;
    uint32_t max_seq_len = 128;
    grpc::Status load_status = grpc::Status::OK;
  };

  static constexpr uint64_t kKvCacheBytes = 123456;  // unless it is told how much

  FakeRank(std::string address, Options options);
  ~FakeRank() override { Kill(); }

  // A fresh abstract unix socket.
  static std::string NewAddress();

  // As a new process at the same address. REQUIRES: not running.
  void Start();
  // As kill -9 would have it: all connections break.
  void Kill();

  // From now on answers to plans are kept back until a release; Kill drops them.
  void HoldReplies();
  // Lets `count` of them go, or all that come.
  void ReleaseReplies(size_t count);
  void ReleaseReplies() { ReleaseReplies(kAll); }
  // Waits until a plan came whose answer is held back.
  void WaitUntilHolding();
  // Waits until so many plans came, answered or not.
  void WaitForPlans(size_t count);
  // Its loop stops: from now on a LoadShard waits for a Kill, as answers do after HoldReplies.
  // Other calls are answered.
  void HangLoop();
  // The next answer claims another state than the router has.
  void DivergeOnce();
  size_t num_plans() const;
  size_t num_aborts() const;
  std::vector<std::string> rendezvous() const;  // of each join
  const worker::v1::LoadShardRequest& loaded() const { return loaded_; }

  static uint32_t NextToken(absl::Span<const uint32_t> log, uint64_t seed, uint32_t choice);
  // The text of the `count` tokens after `prompt`.
  static std::string Solo(const std::vector<uint32_t>& prompt, uint64_t seed, uint32_t choice,
                          uint32_t count);

  grpc::Status GetWorkerInfo(grpc::ServerContext*, const worker::v1::GetWorkerInfoRequest*,
                             worker::v1::GetWorkerInfoResponse* response) override;
  grpc::Status LoadShard(grpc::ServerContext*, const worker::v1::LoadShardRequest* request,
                         grpc::ServerWriter<worker::v1::LoadShardResponse>* writer) override;
  grpc::Status GetModelDescription(
      grpc::ServerContext*, const worker::v1::GetModelDescriptionRequest*,
      grpc::ServerWriter<worker::v1::GetModelDescriptionResponse>* writer) override;
  grpc::Status JoinGroup(grpc::ServerContext*, const worker::v1::JoinGroupRequest* request,
                         worker::v1::JoinGroupResponse*) override;
  grpc::Status AbortGroup(grpc::ServerContext*, const worker::v1::AbortGroupRequest*,
                          worker::v1::AbortGroupResponse*) override;
  using Stream = grpc::ServerReaderWriter<worker::v1::ExecuteResponse, worker::v1::ExecuteRequest>;
  grpc::Status Execute(grpc::ServerContext* context, Stream* stream) override;

 private:
  struct Slot {
    std::vector<uint32_t> log;
    uint32_t position = 0;
    worker::v1::Sampling sampling;
  };
  using Slots = std::map<uint32_t, Slot>;

  // Of one stream; guarded by mutex_.
  struct Answers {
    std::deque<worker::v1::ExecuteResponse> waiting;
    bool is_over = false;  // the stream is
  };

  static constexpr size_t kAll = ~size_t{0};

  static void ApplyPlan(const worker::v1::StepPlan& plan, Slots* slots, base::StateHash* hash,
                        worker::v1::ExecuteResponse* response);

  void WriteAnswers(grpc::ServerContext* context, Stream* stream, Answers* answers);

  const std::string address_;
  const Options options_;
  worker::v1::LoadShardRequest loaded_;
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  uint64_t highest_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t instance_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_released_ ABSL_GUARDED_BY(mutex_) = kAll;  // replies that may go
  bool is_holding_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_loaded_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_killed_ ABSL_GUARDED_BY(mutex_) = false;
  bool diverges_ ABSL_GUARDED_BY(mutex_) = false;
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;
  size_t num_plans_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_aborts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> rendezvous_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace shoal::router
