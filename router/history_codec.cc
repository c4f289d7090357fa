#include "router/history_codec.h"

#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "router/plan_codec.h"

namespace shoal::router {
namespace {

namespace wire = history::v1;

// Beyond these a file is broken.
constexpr uint64_t kMaxRanks = 1 << 16;
constexpr uint32_t kMaxBlocks = 1 << 24;

void Fill(const GroupOptions& options, wire::GroupOptions* out) {
  out->set_tensor_parallel_size(options.tensor_parallel_size);
  out->set_pipeline_parallel_size(options.pipeline_parallel_size);
  out->set_version(options.version);
  out->set_protocol_version(options.protocol_version);
  out->set_join_timeout_ns(absl::ToInt64Nanoseconds(options.join_timeout));
  out->set_recovery_timeout_ns(absl::ToInt64Nanoseconds(options.recovery_timeout));
  out->set_min_step_timeout_ns(absl::ToInt64Nanoseconds(options.min_step_timeout));
  out->set_step_timeout_factor(options.step_timeout_factor);
  out->set_num_warmup_steps(options.num_warmup_steps);
  out->set_warmup_step_timeout_ns(absl::ToInt64Nanoseconds(options.warmup_step_timeout));
  out->set_min_backoff_ns(absl::ToInt64Nanoseconds(options.min_backoff));
  out->set_max_backoff_ns(absl::ToInt64Nanoseconds(options.max_backoff));
}

GroupOptions Read(const wire::GroupOptions& proto) {
  GroupOptions options;
  options.tensor_parallel_size = proto.tensor_parallel_size();
  options.pipeline_parallel_size = proto.pipeline_parallel_size();
  options.version = proto.version();
  options.protocol_version = proto.protocol_version();
  options.join_timeout = absl::Nanoseconds(proto.join_timeout_ns());
  options.recovery_timeout = absl::Nanoseconds(proto.recovery_timeout_ns());
  options.min_step_timeout = absl::Nanoseconds(proto.min_step_timeout_ns());
  options.step_timeout_factor = proto.step_timeout_factor();
  options.num_warmup_steps = proto.num_warmup_steps();
  options.warmup_step_timeout = absl::Nanoseconds(proto.warmup_step_timeout_ns());
  options.min_backoff = absl::Nanoseconds(proto.min_backoff_ns());
  options.max_backoff = absl::Nanoseconds(proto.max_backoff_ns());
  return options;
}

void Fill(const RankInfo& info, wire::RankInfo* out) {
  out->set_instance_id(info.instance_id);
  out->set_version(info.version);
  out->set_protocol_version(info.protocol_version);
  out->set_model_fingerprint(info.model_fingerprint);
  out->set_numerics_id(info.numerics_id);
  out->set_highest_epoch(info.highest_epoch);
  out->set_num_blocks(info.num_blocks);
  out->set_block_size(info.block_size);
  out->set_max_batch_tokens(info.max_batch_tokens);
  out->set_max_batch_seqs(info.max_batch_seqs);
  out->set_max_seq_len(info.max_seq_len);
}

RankInfo Read(const wire::RankInfo& proto) {
  RankInfo info;
  info.instance_id = proto.instance_id();
  info.version = proto.version();
  info.protocol_version = proto.protocol_version();
  info.model_fingerprint = proto.model_fingerprint();
  info.numerics_id = proto.numerics_id();
  info.highest_epoch = proto.highest_epoch();
  info.num_blocks = proto.num_blocks();
  info.block_size = proto.block_size();
  info.max_batch_tokens = proto.max_batch_tokens();
  info.max_batch_seqs = proto.max_batch_seqs();
  info.max_seq_len = proto.max_seq_len();
  return info;
}

void Fill(const StepReplied& reply, worker::v1::ExecuteResponse* out) {
  out->set_step(reply.step);
  out->set_state_hash(reply.state_hash);
  out->set_token_hash(reply.token_hash);
  for (const RowOutput& output : reply.outputs) ToProto(output, out->add_outputs());
  out->mutable_timings()->set_compute_ns(absl::ToInt64Nanoseconds(reply.duration));
}

template <typename Repeated>
std::vector<uint32_t> ToVector(const Repeated& values) {
  return {values.begin(), values.end()};
}

}  // namespace

wire::Header ToProto(const GroupControlOptions& options) {
  wire::Header header;
  Fill(options.group, header.mutable_group());
  wire::SchedulerOptions* scheduler = header.mutable_scheduler();
  scheduler->set_max_prefill_chunk(options.scheduler.max_prefill_chunk);
  scheduler->set_max_queued_requests(options.scheduler.max_queued_requests);
  scheduler->set_max_plans_in_flight(options.scheduler.max_plans_in_flight);
  scheduler->set_enable_prefix_cache(options.scheduler.enable_prefix_cache);
  scheduler->set_aging_interval_ns(absl::ToInt64Nanoseconds(options.scheduler.aging_interval));
  scheduler->set_inter_token_target_ns(absl::ToInt64Nanoseconds(options.inter_token_target));
  scheduler->set_stall_timeout_ns(absl::ToInt64Nanoseconds(options.scheduler.stall_timeout));
  return header;
}

absl::StatusOr<GroupControlOptions> FromProto(const wire::Header& header) {
  const uint64_t num_ranks =
      uint64_t{header.group().tensor_parallel_size()} * header.group().pipeline_parallel_size();
  if (num_ranks == 0 || num_ranks > kMaxRanks || header.scheduler().max_plans_in_flight() == 0 ||
      header.scheduler().aging_interval_ns() <= 0) {
    return absl::InvalidArgumentError("impossible options in its header");
  }
  GroupControlOptions options;
  options.group = Read(header.group());
  const wire::SchedulerOptions& scheduler = header.scheduler();
  options.scheduler.max_prefill_chunk = scheduler.max_prefill_chunk();
  options.scheduler.max_queued_requests = scheduler.max_queued_requests();
  options.scheduler.max_plans_in_flight = scheduler.max_plans_in_flight();
  options.scheduler.enable_prefix_cache = scheduler.enable_prefix_cache();
  options.scheduler.aging_interval = absl::Nanoseconds(scheduler.aging_interval_ns());
  options.scheduler.stall_timeout = absl::Nanoseconds(scheduler.stall_timeout_ns());
  options.inter_token_target = absl::Nanoseconds(scheduler.inter_token_target_ns());
  return options;
}

void ToProto(const Request& request, wire::Sequence* sequence) {
  sequence->set_id(request.id);
  sequence->mutable_token_ids()->Assign(request.token_ids.begin(), request.token_ids.end());
  sequence->set_num_prompt_tokens(request.num_prompt_tokens);
  sequence->set_max_tokens(request.max_tokens);
  sequence->mutable_stop_token_ids()->Assign(request.stop_token_ids.begin(),
                                             request.stop_token_ids.end());
  sequence->mutable_eos_ids()->Assign(request.eos_ids.begin(), request.eos_ids.end());
  sequence->set_ignore_eos(request.ignore_eos);
  ToProto(request.sampling, sequence->mutable_sampling());
  sequence->set_prompt_logprobs(request.sampling.prompt_logprobs);
  sequence->set_priority(static_cast<uint32_t>(request.priority));
  if (request.deadline != absl::InfiniteFuture()) {
    sequence->set_deadline_ns(absl::ToUnixNanos(request.deadline));
  }
  sequence->set_arrival_ns(absl::ToUnixNanos(request.arrival));
  sequence->set_cache_salt(request.cache_salt);
}

Request FromProto(const wire::Sequence& sequence) {
  Request request;
  request.id = sequence.id();
  request.token_ids = ToVector(sequence.token_ids());
  request.num_prompt_tokens = sequence.num_prompt_tokens();
  request.max_tokens = sequence.max_tokens();
  request.stop_token_ids = ToVector(sequence.stop_token_ids());
  request.eos_ids = ToVector(sequence.eos_ids());
  request.ignore_eos = sequence.ignore_eos();
  request.sampling = FromProto(sequence.sampling());
  request.sampling.prompt_logprobs = sequence.prompt_logprobs();
  request.priority = static_cast<Priority>(sequence.priority());
  if (sequence.has_deadline_ns()) request.deadline = absl::FromUnixNanos(sequence.deadline_ns());
  request.arrival = absl::FromUnixNanos(sequence.arrival_ns());
  request.cache_salt = sequence.cache_salt();
  return request;
}

void ToProto(const GroupEvent& event, wire::RankEvent* proto) {
  const auto visitor = [proto](const auto& concrete) {
    using Event = std::decay_t<decltype(concrete)>;
    if constexpr (requires { concrete.rank; }) proto->set_rank(concrete.rank);
    if constexpr (requires { concrete.epoch; }) proto->set_epoch(concrete.epoch);
    if constexpr (std::is_same_v<Event, RankAnswered>) {
      Fill(concrete.info, proto->mutable_answered());
    } else if constexpr (std::is_same_v<Event, RankFailed>) {
      ToProto(concrete.status, proto->mutable_failed());
    } else if constexpr (std::is_same_v<Event, RankJoined>) {
      proto->set_joined(true);
    } else if constexpr (std::is_same_v<Event, StreamOpened>) {
      proto->set_opened(true);
    } else if constexpr (std::is_same_v<Event, StreamClosed>) {
      ToProto(concrete.status, proto->mutable_closed());
    } else if constexpr (std::is_same_v<Event, StepReplied>) {
      Fill(concrete, proto->mutable_replied());
    } else {
      LOG(FATAL) << "no event of a rank";
    }
  };
  std::visit(visitor, event);
}

absl::StatusOr<GroupEvent> FromProto(const wire::RankEvent& proto, uint32_t num_ranks) {
  const uint32_t rank = proto.rank();
  const uint64_t epoch = proto.epoch();
  if (rank >= num_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("an event of rank ", rank, ", the group has ", num_ranks));
  }
  switch (proto.event_case()) {
    case wire::RankEvent::kAnswered: {
      RankInfo info = Read(proto.answered());
      if (info.num_blocks == 0 || info.num_blocks > kMaxBlocks || info.block_size == 0 ||
          info.max_batch_seqs == 0 || info.max_batch_tokens < info.max_batch_seqs) {
        return absl::InvalidArgumentError(absl::StrCat("impossible limits of rank ", rank));
      }
      return RankAnswered{rank, std::move(info)};
    }
    case wire::RankEvent::kFailed:
      return RankFailed{rank, epoch, FromProto(proto.failed())};
    case wire::RankEvent::kJoined:
      return RankJoined{rank, epoch};
    case wire::RankEvent::kOpened:
      return StreamOpened{rank, epoch};
    case wire::RankEvent::kClosed:
      return StreamClosed{rank, epoch, FromProto(proto.closed())};
    case wire::RankEvent::kReplied: {
      RankReply reply = FromProto(proto.replied());
      return StepReplied{rank,
                         epoch,
                         reply.result.step,
                         reply.state_hash,
                         reply.token_hash,
                         std::move(reply.result.outputs),
                         absl::Nanoseconds(reply.compute_ns + reply.wait_peers_ns)};
    }
    case wire::RankEvent::EVENT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("an unknown event of rank ", rank));
}

void ToProto(const absl::Status& status, wire::Status* proto) {
  proto->set_code(status.raw_code());
  proto->set_message(std::string(status.message()));
}

absl::Status FromProto(const wire::Status& proto) {
  return absl::Status(static_cast<absl::StatusCode>(proto.code()), proto.message());
}

void ToProto(const SendStep& step, wire::Planning* proto) {
  worker::v1::ExecuteRequest request;
  ToProto(step.plan, {.owner_id = "", .counter = step.epoch}, &request);
  *proto->mutable_plan() = std::move(*request.mutable_plan());
  proto->set_state_hash(step.plan.state_hash);
}

}  // namespace shoal::router
