#include "router/control/group_control.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "router/control/first_token.h"
#include "router/control/retry_hint.h"

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
  if (!sequences.empty()) SHOAL_RETURN_IF_ERROR(CheckFirstToken(now, sequences.front()));
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

// Its choices share the prompt, so one stands for all.
absl::Status GroupControl::CheckFirstToken(absl::Time now, const Request& request) {
  if (request.deadline == absl::InfiniteFuture() || request.deadline <= now) {
    return absl::OkStatus();
  }
  const Backlog backlog = scheduler_->BacklogOf(request);
  const FirstTokenPrediction first =
      PredictFirstToken(backlog, cost_, scheduler_->options().max_batch_tokens, mean_output_);
  const absl::Duration left = request.deadline - now;
  if (first.total <= left) return absl::OkStatus();
  const auto rounded = [](absl::Duration duration) {
    return absl::FormatDuration(absl::Ceil(duration, absl::Milliseconds(1)));
  };
  std::string message =
      absl::StrCat("the first token would come in about ", rounded(first.total),
                   ", after the deadline in ", rounded(left), ": ", backlog.num_waiting_ahead,
                   " sequences wait ahead, with ", backlog.num_tokens_ahead,
                   " prompt tokens to compute before its own ", backlog.num_own_tokens);
  if (first.alone > left) {
    absl::StrAppend(&message, ", which alone take ", rounded(first.alone),
                    "; give it more time or shorten the prompt");
    return WithRetryHint(absl::ResourceExhaustedError(message), absl::InfiniteDuration());
  }
  absl::StrAppend(&message, "; retry later or give it more time");
  return WithRetryHint(absl::ResourceExhaustedError(message), first.total - left);
}

// Of the next step.
uint32_t GroupControl::MaxPrefillTokens() const {
  constexpr uint32_t kLeast = 16;  // so that prompts go on
  const uint32_t most = scheduler_->options().max_batch_tokens;
  if (options_.inter_token_target == absl::ZeroDuration()) return most;
  const StepWork decodes = scheduler_->DecodeWork();
  if (decodes.num_tokens == 0 || cost_.Predict(decodes) == absl::ZeroDuration()) return most;
  // Where a step without prompts takes nearly as long, prompts have as much again.
  const absl::Duration target = std::max(options_.inter_token_target, 2 * cost_.Predict(decodes));
  return std::max(kLeast, cost_.TokensWithin(target, decodes, scheduler_->PrefillPosition(), most));
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
      Commit(now, concrete);
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

void GroupControl::Commit(absl::Time now, const CommitPlan& commit) {
  absl::StatusOr<std::vector<Event>> events = scheduler_->CommitStep(now, commit.result);
  if (!events.ok()) {
    refusal_ = ResultRefused{events.status()};
    return;
  }
  CountStepTime(now);
  const SentPlan plan = sent_plans_.front();
  sent_plans_.pop_front();
  // The ranks' own figure has none of the router's delays.
  const bool is_told = commit.duration > absl::ZeroDuration();
  ObserveStep(plan.work, is_told ? commit.duration : now - std::max(plan.sent, last_commit_));
  last_commit_ = now;
  ++counters_.num_steps;
  counters_.num_prompt_tokens += plan.num_prompt_tokens;
  for (const Event& event : *events) {
    counters_.num_generated_tokens += event.token_ids.size();
    const bool has_stop_token =
        event.kind == Event::Kind::kFinished && event.outcome.reason == FinishReason::kStopToken;
    counters_.num_generated_tokens += has_stop_token ? 1 : 0;
    if (event.kind != Event::Kind::kFinished) continue;
    const double num_tokens = event.outcome.num_generated_tokens;
    mean_output_ += (num_tokens - mean_output_) * (mean_output_ == 0 ? 1 : 1.0 / 32);
  }
  Append(*std::move(events));
}

void GroupControl::ObserveStep(const StepWork& work, absl::Duration duration) {
  const absl::Duration predicted = cost_.Predict(work);
  if (predicted > absl::ZeroDuration() && duration > absl::ZeroDuration()) {
    const double error = std::abs(absl::FDivDuration(predicted, duration) - 1);
    counters_.prediction_error += (error - counters_.prediction_error) / 64;
  }
  cost_.Observe(work, duration);
}

bool GroupControl::Plan(absl::Time now) {
  plan_at_ = absl::InfiniteFuture();
  if (!scheduler_.has_value() || group_.state() != Group::State::kReady) return false;
  if (sent_plans_.size() >= options_.scheduler.max_plans_in_flight) return false;
  // In a pipeline the next stage, or the first, is free before the oldest plan is done.
  const bool is_pipeline = options_.group.pipeline_parallel_size > 1;
  if (!sent_plans_.empty() && !is_pipeline) {
    const SentPlan& running = sent_plans_.front();
    const absl::Time start = std::max(running.sent, last_commit_);
    const absl::Time due = cost_.NextPlanTime(start, running.work);
    if (now < due) {
      plan_at_ = due;
      return false;
    }
  }
  std::optional<StepPlan> plan = scheduler_->PlanStep(now, MaxPrefillTokens());
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
  SentPlan sent{.sent = now, .work = scheduler_->newest_work(), .num_prompt_tokens = 0};
  for (const StepRow& row : plan.rows) {
    if (row.source == StepRow::Source::kLog) sent.num_prompt_tokens += row.num_tokens;
  }
  sent_plans_.push_back(sent);
  // A step goes through all stages, and what is predicted is one.
  const PlanMade made{
      .step = plan.step,
      .state_hash = plan.state_hash,
      .prediction = cost_.Predict(sent.work) * options_.group.pipeline_parallel_size};
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
