#include "router/control/group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/state_hash.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace shoal::router {
namespace {

// One field in which a rank must equal the group.
template <typename T>
absl::Status CheckEqual(absl::string_view field, uint32_t rank, const T& value,
                        absl::string_view whose, const T& wanted) {
  if (value == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank, " has ", field, " '", value, "', ", whose, " has '", wanted,
                   "': start every rank of a group with the same build, model and limits"));
}

absl::Status CheckSameModel(uint32_t rank, const RankInfo& info, absl::string_view whose,
                            const RankInfo& wanted) {
  SHOAL_RETURN_IF_ERROR(CheckEqual("model fingerprint", rank, info.model_fingerprint, whose,
                                   wanted.model_fingerprint));
  SHOAL_RETURN_IF_ERROR(
      CheckEqual("numerics id", rank, info.numerics_id, whose, wanted.numerics_id));
  SHOAL_RETURN_IF_ERROR(CheckEqual("block size", rank, info.block_size, whose, wanted.block_size));
  SHOAL_RETURN_IF_ERROR(
      CheckEqual("max_batch_tokens", rank, info.max_batch_tokens, whose, wanted.max_batch_tokens));
  SHOAL_RETURN_IF_ERROR(
      CheckEqual("max_batch_seqs", rank, info.max_batch_seqs, whose, wanted.max_batch_seqs));
  return CheckEqual("max_seq_len", rank, info.max_seq_len, whose, wanted.max_seq_len);
}

absl::Status Named(uint32_t rank, absl::string_view what, const absl::Status& status) {
  return absl::UnavailableError(absl::StrCat("rank ", rank, ": ", what, ": ", status.ToString()));
}

}  // namespace

Group::Group(const GroupOptions& options)
    : options_(options),
      ranks_(size_t{options.tensor_parallel_size} * options.pipeline_parallel_size) {
  CHECK(!ranks_.empty());
}

std::vector<GroupAction> Group::Start(absl::Time now) {
  Actions actions;
  recovery_deadline_ = now + options_.recovery_timeout;
  ProbeDueRanks(now, &actions);
  return actions;
}

std::vector<GroupAction> Group::OnEvent(absl::Time now, const GroupEvent& event) {
  Actions actions;
  std::visit([&](const auto& concrete) { On(now, concrete, &actions); }, event);
  return actions;
}

absl::Time Group::NextDeadline() const {
  absl::Time next = std::min(join_deadline_, recovery_deadline_);
  if (!steps_.empty()) next = std::min(next, steps_.front().deadline);
  for (const Rank& rank : ranks_) {
    if (state_ == State::kProbing && rank.phase == Phase::kIdle) {
      next = std::min(next, rank.probe_at);
    }
  }
  return next;
}

bool Group::AllRanksAre(Phase phase) const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [phase](const Rank& rank) { return rank.phase == phase; });
}

bool Group::IsInLastStage(uint32_t rank) const {
  return rank >= num_ranks() - options_.tensor_parallel_size;
}

absl::Duration Group::StepTimeout(absl::Duration prediction) const {
  if (!is_warm_) return options_.warmup_step_timeout;
  return std::max(options_.min_step_timeout, prediction * options_.step_timeout_factor);
}

// Of the oldest step.
void Group::StartClock(absl::Time now) {
  steps_.front().deadline = now + StepTimeout(steps_.front().plan.prediction);
}

void Group::ProbeDueRanks(absl::Time now, Actions* actions) {
  for (uint32_t rank = 0; rank < num_ranks(); ++rank) {
    if (ranks_[rank].phase != Phase::kIdle || ranks_[rank].probe_at > now) continue;
    ranks_[rank].phase = Phase::kProbing;
    actions->push_back(ProbeRank{rank});
  }
}

absl::Status Group::CheckAgreement() const {
  for (uint32_t rank = 0; rank < num_ranks(); ++rank) {
    const RankInfo& info = ranks_[rank].info;
    SHOAL_RETURN_IF_ERROR(
        CheckEqual("version", rank, info.version, "the router", options_.version));
    SHOAL_RETURN_IF_ERROR(CheckEqual("protocol version", rank, info.protocol_version, "the router",
                                     options_.protocol_version));
    SHOAL_RETURN_IF_ERROR(CheckSameModel(rank, info, "rank 0", ranks_[0].info));
    // Streams that are under way must go on with the same bits, in as many blocks.
    if (!identity_.has_value()) continue;
    SHOAL_RETURN_IF_ERROR(CheckSameModel(rank, info, "the group so far", *identity_));
    if (info.num_blocks < identity_->num_blocks) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " has room for ", info.num_blocks, " blocks, the group had ",
                       identity_->num_blocks, ": give it as much KV cache as before"));
    }
  }
  return absl::OkStatus();
}

void Group::On(absl::Time now, const RankAnswered& event, Actions* actions) {
  CHECK_LT(event.rank, num_ranks());
  Rank& rank = ranks_[event.rank];
  if (rank.phase != Phase::kProbing) return;
  rank.phase = Phase::kAnswered;
  rank.backoff = absl::ZeroDuration();
  rank.info = event.info;
  if (!AllRanksAre(Phase::kAnswered)) return;
  if (absl::Status status = CheckAgreement(); !status.ok()) {
    Lose(now, std::move(status), actions);
    return;
  }
  Join(now, actions);
}

void Group::Join(absl::Time now, Actions* actions) {
  state_ = State::kJoining;
  join_deadline_ = now + options_.join_timeout;
  for (const Rank& rank : ranks_) epoch_ = std::max(epoch_, rank.info.highest_epoch);
  ++epoch_;
  num_steps_ = 0;
  for (uint32_t rank = 0; rank < num_ranks(); ++rank) {
    ranks_[rank].phase = Phase::kJoining;
    actions->push_back(JoinRank{rank, epoch_});
  }
}

void Group::On(absl::Time now, const RankFailed& event, Actions* actions) {
  CHECK_LT(event.rank, num_ranks());
  Rank& rank = ranks_[event.rank];
  if (event.epoch == 0 && rank.phase == Phase::kProbing) {
    last_failure_ = Named(event.rank, "does not answer", event.status);
    rank.backoff = std::clamp(rank.backoff * 2, options_.min_backoff, options_.max_backoff);
    rank.phase = Phase::kIdle;
    rank.probe_at = now + rank.backoff;
    if (absl::IsDeadlineExceeded(event.status)) actions->push_back(ReplaceRank{event.rank});
  } else if (event.epoch == epoch_ && state_ == State::kJoining) {
    Lose(now, Named(event.rank, "could not join", event.status), actions);
  }
}

void Group::On(absl::Time now, const RankJoined& event, Actions* actions) {
  CHECK_LT(event.rank, num_ranks());
  Rank& joined = ranks_[event.rank];
  if (event.epoch != epoch_ || joined.phase != Phase::kJoining) return;
  joined.phase = Phase::kJoined;
  if (!AllRanksAre(Phase::kJoined)) return;
  for (uint32_t rank = 0; rank < num_ranks(); ++rank) actions->push_back(OpenStream{rank, epoch_});
}

void Group::On(absl::Time now, const StreamOpened& event, Actions* actions) {
  CHECK_LT(event.rank, num_ranks());
  Rank& opened = ranks_[event.rank];
  if (event.epoch != epoch_ || opened.phase != Phase::kJoined) return;
  opened.phase = Phase::kOpen;
  if (!AllRanksAre(Phase::kOpen)) return;
  state_ = State::kReady;
  join_deadline_ = absl::InfiniteFuture();
  recovery_deadline_ = absl::InfiniteFuture();
  last_failure_ = absl::OkStatus();
  if (identity_.has_value()) return;
  identity_ = ranks_[0].info;
  for (const Rank& rank : ranks_) {
    identity_->num_blocks = std::min(identity_->num_blocks, rank.info.num_blocks);
  }
}

void Group::On(absl::Time now, const StreamClosed& event, Actions* actions) {
  CHECK_LT(event.rank, num_ranks());
  if (event.epoch != epoch_ || state_ == State::kProbing) return;
  Lose(now, Named(event.rank, "its stream closed", event.status), actions);
}

void Group::On(absl::Time now, const PlanMade& event, Actions* actions) {
  CHECK(state_ == State::kReady) << "step " << event.step;
  steps_.push_back({.plan = event,
                    .deadline = absl::InfiniteFuture(),
                    .has_replied = std::vector<bool>(num_ranks()),
                    .num_missing = num_ranks(),
                    .token_hash = std::nullopt,
                    .duration = absl::ZeroDuration(),
                    .outputs = {}});
  if (steps_.size() == 1) StartClock(now);
  actions->push_back(SendPlan{epoch_, event.step});
}

// The one that the rank answers next; null if it has answered all.
Group::Step* Group::NextStepOf(uint32_t rank) {
  for (Step& step : steps_) {
    if (!step.has_replied[rank]) return &step;
  }
  return nullptr;
}

absl::Status Group::CheckReply(const StepReplied& reply, const Step* step) const {
  if (step == nullptr || reply.step != step->plan.step) {
    return absl::InternalError(absl::StrCat(
        "rank ", reply.rank, " answers step ", reply.step, ", ",
        step == nullptr ? "which nobody awaits" : absl::StrCat("not ", step->plan.step)));
  }
  if (reply.state_hash != step->plan.state_hash) {
    return absl::InternalError(absl::StrCat(
        "rank ", reply.rank, " has other sequences or blocks than the router after step ",
        reply.step, ": state hash ", reply.state_hash, ", not ", step->plan.state_hash));
  }
  if (IsInLastStage(reply.rank) &&
      reply.token_hash != step->token_hash.value_or(reply.token_hash)) {
    return absl::InternalError(absl::StrCat(
        "rank ", reply.rank, " sampled other tokens than its peers in step ", reply.step));
  }
  if (reply.rank != num_ranks() - options_.tensor_parallel_size) return absl::OkStatus();
  uint64_t hash = base::kTokenHashSeed;
  for (const RowOutput& output : reply.outputs) {
    hash = base::AddToTokenHash(hash, output.slot, output.token_ids);
  }
  if (hash == reply.token_hash) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("rank ", reply.rank, " sent other tokens in step ",
                                          reply.step, " than it says"));
}

void Group::On(absl::Time now, const StepReplied& event, Actions* actions) {
  CHECK_LT(event.rank, num_ranks());
  if (event.epoch != epoch_ || state_ != State::kReady) return;
  Step* step = NextStepOf(event.rank);
  if (absl::Status status = CheckReply(event, step); !status.ok()) {
    Lose(now, std::move(status), actions);
    return;
  }
  step->has_replied[event.rank] = true;
  if (IsInLastStage(event.rank)) step->token_hash = event.token_hash;
  if (event.rank == num_ranks() - options_.tensor_parallel_size) step->outputs = event.outputs;
  step->duration = std::max(step->duration, event.duration);
  if (--step->num_missing > 0) return;
  // Every rank has answered the steps before it: it is the oldest.
  StepResult result;
  result.step = event.step;
  result.outputs = std::move(step->outputs);
  const absl::Duration duration = step->duration;
  steps_.pop_front();
  ++num_steps_;
  is_warm_ = is_warm_ || num_steps_ >= options_.num_warmup_steps;
  if (!steps_.empty()) StartClock(now);
  backoff_ = absl::ZeroDuration();
  actions->push_back(CommitPlan{std::move(result), duration});
}

void Group::On(absl::Time now, const ResultRefused& event, Actions* actions) {
  if (state_ == State::kReady) Lose(now, event.status, actions);
}

void Group::On(absl::Time now, const TimerFired&, Actions* actions) {
  if (!steps_.empty() && now >= steps_.front().deadline) {
    const Step& step = steps_.front();
    std::vector<uint32_t> missing;
    for (uint32_t rank = 0; rank < num_ranks(); ++rank) {
      if (!step.has_replied[rank]) missing.push_back(rank);
    }
    Lose(now,
         absl::DeadlineExceededError(
             absl::StrCat("step ", step.plan.step, " was not answered within ",
                          absl::FormatDuration(StepTimeout(step.plan.prediction)), " by rank ",
                          absl::StrJoin(missing, ", "))),
         actions);
  } else if (now >= join_deadline_) {
    std::vector<uint32_t> missing;
    for (uint32_t rank = 0; rank < num_ranks(); ++rank) {
      if (ranks_[rank].phase != Phase::kOpen) missing.push_back(rank);
    }
    Lose(now,
         absl::DeadlineExceededError(absl::StrCat("rank ", absl::StrJoin(missing, ", "),
                                                  " did not join within ",
                                                  absl::FormatDuration(options_.join_timeout))),
         actions);
  }
  if (state_ == State::kProbing) ProbeDueRanks(now, actions);
  if (now >= recovery_deadline_) {
    recovery_deadline_ = absl::InfiniteFuture();
    actions->push_back(FailRequests{absl::UnavailableError(
        absl::StrCat("the worker group did not come back within ",
                     absl::FormatDuration(options_.recovery_timeout),
                     last_failure_.ok() ? "" : "; ", last_failure_.message()))});
  }
}

// The attempt or the epoch is over; the ranks are probed again.
void Group::Lose(absl::Time now, absl::Status why, Actions* actions) {
  last_failure_ = std::move(why);
  if (state_ != State::kProbing) {
    for (uint32_t rank = 0; rank < num_ranks(); ++rank) {
      actions->push_back(AbortRank{rank, epoch_});
    }
  }
  if (state_ == State::kReady) {
    ++num_losses_;
    recovery_deadline_ = now + options_.recovery_timeout;
    actions->push_back(ReplayAll{});
  }
  const bool was_useful = state_ == State::kReady && num_steps_ > 0;
  state_ = State::kProbing;
  steps_.clear();
  join_deadline_ = absl::InfiniteFuture();
  for (Rank& rank : ranks_) {
    rank.phase = Phase::kIdle;
    rank.probe_at = now + backoff_;
    rank.backoff = absl::ZeroDuration();
  }
  if (!was_useful) {
    backoff_ = std::clamp(backoff_ * 2, options_.min_backoff, options_.max_backoff);
  }
  ProbeDueRanks(now, actions);
}

}  // namespace shoal::router
