#include "router/control/group_control.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace shoal::router {

GroupControl::GroupControl(const GroupControlOptions& options)
    : options_(options), group_(options.group) {}

void GroupControl::Start(absl::Time now) {
  for (const GroupAction& action : group_.Start(now)) Do(now, action);
}

absl::Status GroupControl::Submit(absl::Time now, std::vector<Request> sequences) {
  if (!scheduler_.has_value() || !group_.accepts_requests()) {
    return absl::UnavailableError(
        absl::StrCat("no worker group is ready: ", group_.last_failure().message()));
  }
  std::vector<uint64_t> accepted;
  for (Request& sequence : sequences) {
    const uint64_t id = sequence.id;
    if (absl::Status status = scheduler_->Submit(now, std::move(sequence)); !status.ok()) {
      for (const uint64_t other : accepted) scheduler_->Finish(other);
      return status;
    }
    accepted.push_back(id);
  }
  return absl::OkStatus();
}

void GroupControl::Cancel(absl::Time now, uint64_t id, absl::string_view reason) {
  if (scheduler_.has_value()) Append(scheduler_->Cancel(now, id, reason));
}

void GroupControl::Finish(uint64_t id) {
  if (scheduler_.has_value()) scheduler_->Finish(id);
}

void GroupControl::FailAll(absl::Time now, const absl::Status& status) {
  if (scheduler_.has_value()) Append(scheduler_->FailAll(now, status));
}

void GroupControl::OnGroupEvent(absl::Time now, const GroupEvent& event) { Handle(now, event); }

void GroupControl::OnTimer(absl::Time now) {
  if (scheduler_.has_value() && now >= scheduler_->NextDeadline()) Append(scheduler_->Expire(now));
  if (now >= group_.NextDeadline()) Handle(now, TimerFired{});
}

absl::Time GroupControl::NextDeadline() const {
  const absl::Time next = std::min(group_.NextDeadline(), plan_at_);
  return scheduler_.has_value() ? std::min(next, scheduler_->NextDeadline()) : next;
}

// Feeds the group, does what it says, and so on until nothing is left.
void GroupControl::Handle(absl::Time now, const GroupEvent& event) {
  for (const GroupAction& action : group_.OnEvent(now, event)) Do(now, action);
  if (group_.state() == Group::State::kReady && !scheduler_.has_value()) MakeScheduler();
  if (!refusal_.has_value()) return;
  const ResultRefused refused = *std::exchange(refusal_, std::nullopt);
  for (const GroupAction& action : group_.OnEvent(now, refused)) Do(now, action);
}

void GroupControl::Do(absl::Time now, const GroupAction& action) {
  const auto visitor = [this, now](const auto& concrete) {
    using Action = std::decay_t<decltype(concrete)>;
    if constexpr (std::is_same_v<Action, CommitPlan>) {
      Commit(now, concrete.result);
    } else if constexpr (std::is_same_v<Action, ReplayAll>) {
      CountStepTime(now);
      sent_plans_.clear();
      if (scheduler_.has_value()) Append(scheduler_->Reset(now));
    } else if constexpr (std::is_same_v<Action, FailRequests>) {
      FailAll(now, concrete.status);
      actions_.push_back(concrete);
    } else if constexpr (std::is_same_v<Action, SendPlan>) {
      actions_.push_back(SendStep{concrete.epoch, *std::exchange(plan_, std::nullopt)});
    } else {
      actions_.push_back(concrete);
    }
  };
  std::visit(visitor, action);
}

void GroupControl::Commit(absl::Time now, const StepResult& result) {
  absl::StatusOr<std::vector<Event>> events = scheduler_->CommitStep(now, result);
  if (!events.ok()) {
    refusal_ = ResultRefused{events.status()};
    return;
  }
  CountStepTime(now);
  const SentPlan plan = sent_plans_.front();
  sent_plans_.pop_front();
  predictor_.Observe(plan.num_tokens, now - std::max(plan.sent, last_commit_));
  last_commit_ = now;
  ++counters_.num_steps;
  counters_.num_prompt_tokens += plan.num_prompt_tokens;
  for (const Event& event : *events) {
    counters_.num_generated_tokens += event.token_ids.size();
    const bool has_stop_token =
        event.kind == Event::Kind::kFinished && event.outcome.reason == FinishReason::kStopToken;
    counters_.num_generated_tokens += has_stop_token ? 1 : 0;
  }
  Append(*std::move(events));
}

bool GroupControl::Plan(absl::Time now) {
  plan_at_ = absl::InfiniteFuture();
  if (!scheduler_.has_value() || group_.state() != Group::State::kReady) return false;
  // In a pipeline the next stage, or the first, is free before the oldest plan is done.
  const bool is_pipeline = options_.group.pipeline_parallel_size > 1;
  if (!sent_plans_.empty() && !is_pipeline) {
    const SentPlan& running = sent_plans_.front();
    const absl::Time start = std::max(running.sent, last_commit_);
    const absl::Time due = predictor_.NextPlanTime(start, running.num_tokens);
    if (now < due) {
      if (sent_plans_.size() < options_.scheduler.max_plans_in_flight) plan_at_ = due;
      return false;
    }
  }
  std::optional<StepPlan> plan = scheduler_->PlanStep(now);
  if (!plan.has_value()) return false;
  Send(now, *std::move(plan));
  return true;
}

// REQUIRES: called before sent_plans_ changes.
void GroupControl::CountStepTime(absl::Time now) {
  if (!sent_plans_.empty()) counters_.step_time += now - counted_until_;
  counted_until_ = now;
}

void GroupControl::Send(absl::Time now, StepPlan plan) {
  CountStepTime(now);
  SentPlan sent{.sent = now, .num_tokens = 0, .num_prompt_tokens = 0};
  for (const StepRow& row : plan.rows) {
    sent.num_tokens += row.num_tokens;
    if (row.source == StepRow::Source::kLog) sent.num_prompt_tokens += row.num_tokens;
  }
  sent_plans_.push_back(sent);
  const PlanMade made{.step = plan.step,
                      .state_hash = plan.state_hash,
                      .prediction = predictor_.Predict(sent.num_tokens)};
  plan_ = std::move(plan);
  Handle(now, made);
}

// The group is ready for the first time: its limits are known.
void GroupControl::MakeScheduler() {
  const RankInfo& identity = group_.identity();
  SchedulerOptions options = options_.scheduler;
  options.num_stages = options_.group.pipeline_parallel_size;
  options.num_blocks = identity.num_blocks;
  options.block_size = identity.block_size;
  options.max_batch_tokens = identity.max_batch_tokens;
  options.max_batch_seqs = identity.max_batch_seqs;
  const uint64_t pool_tokens = uint64_t{identity.num_blocks} * identity.block_size;
  options.max_seq_len =
      static_cast<uint32_t>(std::min<uint64_t>(identity.max_seq_len, pool_tokens));
  scheduler_.emplace(options);
}

void GroupControl::Append(std::vector<Event> events) {
  std::move(events.begin(), events.end(), std::back_inserter(events_));
}

void GroupControl::CheckInvariants() const {
  CHECK(!plan_.has_value());
  if (!scheduler_.has_value()) {
    CHECK(sent_plans_.empty());
    return;
  }
  scheduler_->CheckInvariants();
  CHECK_EQ(sent_plans_.size(), scheduler_->num_plans_in_flight());
  CHECK_EQ(sent_plans_.size(), group_.num_steps_in_flight());
}

}  // namespace shoal::router
