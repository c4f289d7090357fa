#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/support/byte_buffer.h"
#include "router/control/group.h"
#include "router/engine.h"
#include "router/plan_codec.h"
#include "router/worker_client.h"
#include "shoal/worker/v1/worker.pb.h"

namespace shoal::router {

// Does for one rank what its Group asks, and reports back as GroupEvents. Owned by the shell; one
// thread, that of the client's loop.
class RankLink {
 public:
  struct Options {
    uint32_t rank = 0;
    std::string address;
    worker::v1::LoadShardRequest load;
    std::string owner_id;
    std::string token;  // see WorkerClient
    bool take_over = false;
    absl::Duration join_timeout = absl::Seconds(30);
    // Of a probe's calls that cost a rank nothing. One that lets it pass hangs.
    absl::Duration probe_timeout = absl::Seconds(5);
  };
  // Called for each event, never from inside a method of the link.
  using Post = std::function<void(GroupEvent event)>;

  RankLink(Options options, CompletionLoop* loop, Post post);

  // GetWorkerInfo, then LoadShard (which costs nothing if the shard is there), then, for a link
  // that `wants_description` and has none yet, GetModelDescription. A new process is asked for as
  // much KV cache as the one before it had: what fits may be less by now, and a group that lost
  // blocks could not go on.
  void Probe(bool wants_description);
  // `rendezvous` is the same for all ranks of the epoch.
  void Join(uint64_t epoch, const std::string& rendezvous, const std::string& pipeline_rendezvous);
  void OpenStream(uint64_t epoch);
  void Send(const grpc::ByteBuffer& plan) { client_.Send(plan); }
  // Unblocks the rank and closes its stream.
  void Abort(uint64_t epoch, const std::string& reason);

  // Silences everything; then the loop is to run while num_pending() > 0.
  void CancelAll() { client_.CancelAll(); }
  size_t num_pending() const { return client_.num_pending(); }

  const RankStatus& status() const { return status_; }
  // Null until a Probe brought it.
  const worker::v1::ModelDescription* description() const {
    return description_.has_value() ? &*description_ : nullptr;
  }
  // An error of the last probe that trying again will not cure, as a model that cannot be cut for
  // this many ranks. OK otherwise.
  const absl::Status& configuration_error() const { return configuration_error_; }

 private:
  void Load(const std::string& instance_id, bool wants_description);
  void AskAgain(const worker::v1::ShardLimits& limits, bool wants_description);
  void Describe(RankInfo info);
  void NoteInfo(const worker::v1::GetWorkerInfoResponse& info);
  void OnReply(uint64_t epoch, const worker::v1::ExecuteResponse& response);
  void Fail(uint64_t epoch, const absl::Status& status);

  const Options options_;
  const Post post_;
  WorkerClient client_;
  RankStatus status_;
  worker::v1::LoadShardRequest load_;
  std::string loaded_instance_;  // the process that has loaded it
  std::optional<worker::v1::ModelDescription> description_;
  absl::Status configuration_error_;
};

}  // namespace shoal::router
