#include "router/rank_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/protocol_version.h"
#include "glog/logging.h"

namespace shoal::router {
namespace {

namespace wire = worker::v1;

// A dead peer is noticed by keepalive; this only bounds a rank that lives and loads for ever.
constexpr absl::Duration kLoadTimeout = absl::Hours(4);
constexpr absl::Duration kDescriptionTimeout = absl::Seconds(60);
constexpr absl::Duration kAbortTimeout = absl::Seconds(2);

// What the rank's configuration is to blame for, and no second try can mend.
bool IsConfigurationError(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnauthenticated:    // another cluster token
    case absl::StatusCode::kResourceExhausted:  // the shard or its KV cache has no room here
      return true;
    default:
      return false;
  }
}

RankInfo MakeInfo(const wire::GetWorkerInfoResponse& info, const wire::ShardLimits& limits) {
  RankInfo result;
  result.instance_id = info.instance_id();
  result.version = info.version();
  result.protocol_version = info.protocol_version();
  result.model_fingerprint = absl::StrCat(absl::Hex(info.model_fingerprint(), absl::kZeroPad16));
  result.numerics_id = info.numerics_id();
  result.highest_epoch = info.highest_epoch();
  result.num_blocks = limits.num_blocks();
  result.block_size = limits.block_tokens();
  result.max_batch_tokens = limits.max_batch_tokens();
  result.max_batch_seqs = limits.max_batch_seqs();
  result.max_seq_len = limits.max_seq_len();
  return result;
}

}  // namespace

RankLink::RankLink(Options options, CompletionLoop* loop, Post post)
    : options_(std::move(options)),
      post_(std::move(post)),
      client_(options_.rank, options_.address, options_.token, loop),
      load_(options_.load) {
  status_.rank = options_.rank;
  status_.address = options_.address;
}

void RankLink::Fail(uint64_t epoch, const absl::Status& status) {
  status_.state = RankState::kFailed;
  status_.state_reason = std::string(status.message());
  if (epoch == 0 && IsConfigurationError(status)) configuration_error_ = status;
  post_(RankFailed{options_.rank, epoch, status});
}

void RankLink::Probe(bool wants_description) {
  status_.state = RankState::kConnecting;
  configuration_error_ = absl::OkStatus();
  client_.GetWorkerInfo(
      options_.probe_timeout,
      [this, wants_description](absl::StatusOr<wire::GetWorkerInfoResponse> info) {
        if (!info.ok()) {
          Fail(0, info.status());
          return;
        }
        NoteInfo(*info);
        Load(info->instance_id(), wants_description);
      });
}

void RankLink::NoteInfo(const wire::GetWorkerInfoResponse& info) {
  status_.worker_id = info.worker_id();
  status_.backend = info.backend();
  status_.version = info.version();
  status_.pid = info.pid();
}

void RankLink::Load(const std::string& instance_id, bool wants_description) {
  if (!loaded_instance_.empty() && loaded_instance_ != instance_id) {
    load_.set_kv_cache_bytes(status_.kv_cache_bytes);
  }
  status_.state = RankState::kLoading;
  status_.state_reason.clear();
  // What is there is not loaded again: only a step that never ends holds the call up.
  const bool is_loaded = loaded_instance_ == instance_id;
  client_.LoadShard(
      load_, is_loaded ? options_.probe_timeout : kLoadTimeout,
      [this](const wire::LoadShardResponse& progress) {
        status_.load_bytes_done = progress.loaded_bytes();
        status_.load_bytes_total = progress.total_bytes();
        LOG_EVERY_N(INFO, 25) << "rank " << options_.rank << " has loaded "
                              << progress.loaded_bytes() << " of " << progress.total_bytes()
                              << " bytes";
      },
      [this, wants_description](absl::StatusOr<wire::ShardLimits> limits) {
        if (!limits.ok()) {
          Fail(0, limits.status());
        } else {
          AskAgain(*limits, wants_description);
        }
      });
}

void RankLink::AskAgain(const wire::ShardLimits& limits, bool wants_description) {
  status_.weight_bytes = limits.weight_bytes();
  status_.kv_cache_bytes = limits.kv_cache_bytes();
  client_.GetWorkerInfo(
      options_.probe_timeout,
      [this, limits, wants_description](absl::StatusOr<wire::GetWorkerInfoResponse> info) {
        if (!info.ok()) {
          Fail(0, info.status());
          return;
        }
        NoteInfo(*info);
        loaded_instance_ = info->instance_id();
        RankInfo rank_info = MakeInfo(*info, limits);
        if (wants_description && !description_.has_value()) {
          Describe(std::move(rank_info));
        } else {
          post_(RankAnswered{options_.rank, std::move(rank_info)});
        }
      });
}

void RankLink::Describe(RankInfo info) {
  client_.GetModelDescription(
      kDescriptionTimeout,
      [this, info = std::move(info)](absl::StatusOr<wire::ModelDescription> description) {
        if (!description.ok()) {
          Fail(0, description.status());
          return;
        }
        description_ = *std::move(description);
        post_(RankAnswered{options_.rank, info});
      });
}

void RankLink::Join(uint64_t epoch, const std::string& rendezvous,
                    const std::string& pipeline_rendezvous) {
  status_.state = RankState::kJoining;
  wire::JoinGroupRequest request;
  ToProto({.owner_id = options_.owner_id, .counter = epoch}, request.mutable_epoch());
  request.set_rendezvous(rendezvous);
  request.set_pipeline_rendezvous(pipeline_rendezvous);
  request.mutable_timeout()->set_seconds(absl::ToInt64Seconds(options_.join_timeout));
  request.set_take_over(options_.take_over);
  client_.JoinGroup(request, options_.join_timeout,
                    [this, epoch](absl::StatusOr<wire::JoinGroupResponse> response) {
                      if (!response.ok()) {
                        Fail(epoch, response.status());
                      } else {
                        post_(RankJoined{options_.rank, epoch});
                      }
                    });
}

void RankLink::OpenStream(uint64_t epoch) {
  client_.OpenStream(
      base::EpochName(options_.owner_id, epoch),
      {.opened =
           [this, epoch] {
             status_.state = RankState::kReady;
             post_(StreamOpened{options_.rank, epoch});
           },
       .reply = [this, epoch](const wire::ExecuteResponse& response) { OnReply(epoch, response); },
       .closed =
           [this, epoch](const absl::Status& status) {
             status_.state = RankState::kFailed;
             status_.state_reason = std::string(status.message());
             post_(StreamClosed{options_.rank, epoch, status});
           }});
}

void RankLink::OnReply(uint64_t epoch, const wire::ExecuteResponse& response) {
  RankReply reply = FromProto(response);
  if (reply.epoch != GroupEpoch{.owner_id = options_.owner_id, .counter = epoch}) {
    post_(StreamClosed{options_.rank, epoch,
                       absl::InternalError(absl::StrCat(
                           "answers for epoch ", reply.epoch.owner_id, "/", reply.epoch.counter,
                           " on the stream of ", options_.owner_id, "/", epoch))});
    return;
  }
  status_.compute_time += absl::Nanoseconds(reply.compute_ns);
  status_.wait_peers_time += absl::Nanoseconds(reply.wait_peers_ns);
  const bool is_pipeline = options_.load.pipeline_parallel_size() > 1;
  post_(StepReplied{options_.rank, epoch, reply.result.step, reply.state_hash, reply.token_hash,
                    std::move(reply.result.outputs),
                    absl::Nanoseconds(reply.compute_ns + (is_pipeline ? 0 : reply.wait_peers_ns))});
}

void RankLink::Abort(uint64_t epoch, const std::string& reason) {
  wire::AbortGroupRequest request;
  ToProto({.owner_id = options_.owner_id, .counter = epoch}, request.mutable_epoch());
  request.set_reason(reason);
  client_.AbortGroup(
      request, kAbortTimeout,
      [rank = options_.rank](absl::StatusOr<wire::AbortGroupResponse> response) {
        if (!response.ok()) return;  // dead, or in another epoch already
        const wire::RankPosition& position = response->position();
        LOG(INFO) << "rank " << rank << " was aborted in step " << position.step() << ", op \""
                  << position.op() << "\", collective " << position.collective()
                  << (position.has_waiting_for_rank()
                          ? absl::StrCat(", waiting for rank ", position.waiting_for_rank())
                          : "");
      });
  client_.CloseStream();
}

}  // namespace shoal::router
