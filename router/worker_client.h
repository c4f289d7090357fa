#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "router/completion_loop.h"
#include "shoal/worker/v1/worker.grpc.pb.h"

namespace shoal::router {

// One plan for all ranks: serialised once, shared by reference.
grpc::ByteBuffer SerializePlan(const worker::v1::ExecuteRequest& request);

// The calls to one rank. Owned by the group's shell; every method and every callback on the thread
// of its CompletionLoop. Each call ends with one call of its `done`, never before the method
// returned, unless CancelAll silenced it.
class WorkerClient {
 public:
  template <typename T>
  using Done = std::function<void(absl::StatusOr<T>)>;

  // `address`: unix-abstract:NAME, unix:PATH or HOST:PORT. Connects with the first call, and again
  // after a loss. `loop` outlives the client.
  // `token` goes with every call (base/cluster_token.h); empty: none does.
  WorkerClient(uint32_t rank, std::string address, std::string token, CompletionLoop* loop);
  // REQUIRES: no call is pending: CancelAll, then run the loop while num_pending() > 0.
  ~WorkerClient();

  void GetWorkerInfo(absl::Duration timeout, Done<worker::v1::GetWorkerInfoResponse> done);
  void LoadShard(const worker::v1::LoadShardRequest& request, absl::Duration timeout,
                 std::function<void(const worker::v1::LoadShardResponse&)> progress,
                 Done<worker::v1::ShardLimits> done);
  void GetModelDescription(absl::Duration timeout, Done<worker::v1::ModelDescription> done);
  void JoinGroup(const worker::v1::JoinGroupRequest& request, absl::Duration timeout,
                 Done<worker::v1::JoinGroupResponse> done);
  void AbortGroup(const worker::v1::AbortGroupRequest& request, absl::Duration timeout,
                  Done<worker::v1::AbortGroupResponse> done);

  struct StreamCallbacks {
    std::function<void()> opened;  // the rank is connected; at most once, before the others
    // The message is reused: valid during the call only.
    std::function<void(const worker::v1::ExecuteResponse&)> reply;
    // Once, never OK: a rank does not end its stream.
    std::function<void(const absl::Status&)> closed;
  };
  // Opens the Execute stream, closing an older one silently.
  // `epoch`: base::EpochName.
  void OpenStream(const std::string& epoch, StreamCallbacks callbacks);
  // REQUIRES: OpenStream was called. A plan that does not reach the rank shows as `closed`.
  void Send(const grpc::ByteBuffer& plan);
  // Silently. No effect when none is open.
  void CloseStream();

  // Cancels all calls and the stream; none of their callbacks comes any more.
  void CancelAll();
  size_t num_pending() const { return calls_.size(); }

  uint32_t rank() const { return rank_; }
  const std::string& address() const { return address_; }

 private:
  class Call;
  template <typename Response>
  class Unary;
  template <typename Response>
  class ServerStream;
  class Stream;

  const uint32_t rank_;
  const std::string address_;
  const std::string token_;
  CompletionLoop* const loop_;
  const std::shared_ptr<grpc::Channel> channel_;  // gRPC's own reference counting
  const std::unique_ptr<worker::v1::WorkerService::Stub> stub_;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, worker::v1::ExecuteResponse> generic_stub_;
  std::set<Call*> calls_;  // pending; each deletes itself when it ends
  Stream* stream_ = nullptr;
};

}  // namespace shoal::router
