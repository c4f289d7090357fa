#include "tests/router_control/puppet_group.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::router {
namespace {

// A prompt token's logprob follows from the tokens before it alone.
void ExpectPromptLogprobs(const Request& request, const std::vector<PositionLogprobs>& logprobs) {
  const size_t num_prompt =
      request.num_prompt_tokens > 0 ? request.num_prompt_tokens : request.token_ids.size();
  ASSERT_EQ(logprobs.size(), request.sampling.prompt_logprobs ? num_prompt - 1 : 0)
      << "request " << request.id;
  for (size_t i = 0; i < logprobs.size(); ++i) {
    const uint32_t token = request.token_ids[i + 1];
    const auto before = absl::MakeConstSpan(request.token_ids).subspan(0, i + 1);
    ASSERT_EQ(logprobs[i].chosen.token_id, token) << "request " << request.id << " at " << i;
    ASSERT_EQ(logprobs[i].chosen.logprob, PuppetRank::Logprob(before, token));
  }
}

}  // namespace

SchedulerOptions SmallOptions(uint32_t max_plans_in_flight) {
  SchedulerOptions options;
  options.num_blocks = 64;
  options.max_batch_tokens = 64;
  options.max_batch_seqs = 8;
  options.max_seq_len = 512;
  options.max_queued_requests = 100;
  options.max_plans_in_flight = max_plans_in_flight;
  return options;
}

PuppetGroup::PuppetGroup(const SchedulerOptions& options) : scheduler_(options), rank_(options) {}

PuppetGroup::~PuppetGroup() {
  EXPECT_THAT(rank_.errors(), testing::IsEmpty());
  for (const auto& [id, outputs] : outputs_) {
    EXPECT_LE(outputs.num_terminal_events, 1) << "request " << id;
    EXPECT_FALSE(outputs.spoke_after_end) << "request " << id;
  }
}

Request PuppetGroup::Make(std::vector<uint32_t> prompt, uint32_t max_tokens) {
  Request request;
  request.id = next_id_++;
  request.token_ids = std::move(prompt);
  request.max_tokens = max_tokens;
  request.arrival = now_;
  request.sampling.seed = request.id;
  return request;
}

std::vector<uint32_t> Prompt(uint32_t n, uint32_t topic, uint32_t last) {
  std::vector<uint32_t> tokens(n);
  for (uint32_t i = 0; i < n; ++i) tokens[i] = 1000 * (topic + 1) + i;
  tokens.back() += 500 * last;
  return tokens;
}

absl::Status PuppetGroup::TrySubmit(const Request& request) {
  const absl::Status status = scheduler_.Submit(now_, request);
  if (status.ok()) {
    requests_[request.id] = request;
    outputs_[request.id] = Outputs();
  }
  return status;
}

uint64_t PuppetGroup::Submit(const Request& request) {
  const absl::Status status = TrySubmit(request);
  EXPECT_TRUE(status.ok()) << status;
  return request.id;
}

void PuppetGroup::Take(const std::vector<Event>& events) {
  num_events_ += events.size();
  last_events_ = events;
  for (const Event& event : events) {
    Outputs& outputs = outputs_[event.request_id];
    if (outputs.outcome.has_value()) outputs.spoke_after_end = true;
    switch (event.kind) {
      case Event::Kind::kTokens:
        outputs.token_ids.insert(outputs.token_ids.end(), event.token_ids.begin(),
                                 event.token_ids.end());
        outputs.logprobs.insert(outputs.logprobs.end(), event.logprobs.begin(),
                                event.logprobs.end());
        break;
      case Event::Kind::kPromptLogprobs:
        outputs.prompt_logprobs.insert(outputs.prompt_logprobs.end(), event.logprobs.begin(),
                                       event.logprobs.end());
        break;
      case Event::Kind::kFinished:
        ++outputs.num_terminal_events;
        outputs.outcome = event.outcome;
        if (event.outcome.reason == FinishReason::kStopToken) {
          outputs.token_ids.push_back(event.outcome.stop_token_id);
        }
        break;
    }
  }
}

bool PuppetGroup::PlanOne() {
  std::optional<StepPlan> plan = scheduler_.PlanStep(now_);
  scheduler_.CheckInvariants();
  if (!plan.has_value()) return false;
  last_plan_ = *plan;
  history_ = base::CombineHash(history_, plan->state_hash);
  for (const StepRow& row : plan->rows) {
    history_ = base::CombineHash(history_, (uint64_t{row.slot} << 32) + row.num_tokens);
  }
  plans_.push_back(*std::move(plan));
  return true;
}

bool PuppetGroup::Plan() {
  while (PlanOne()) {
  }
  return !plans_.empty();
}

void PuppetGroup::Commit() {
  ASSERT_FALSE(plans_.empty());
  const auto events = scheduler_.CommitStep(now_, rank_.Execute(plans_.front()));
  plans_.pop_front();
  ASSERT_TRUE(events.ok()) << events.status();
  Take(*events);
  scheduler_.CheckInvariants();
}

bool PuppetGroup::Step() {
  if (!Plan()) return false;
  Commit();
  Advance(absl::Milliseconds(10));
  return true;
}

void PuppetGroup::CommitAll() {
  while (!plans_.empty()) Commit();
}

std::vector<Event> PuppetGroup::StepForEvents() {
  last_events_.clear();
  Step();
  return last_events_;
}

void PuppetGroup::Lose() {
  for (const StepPlan& plan : plans_) rank_.Execute(plan);
  plans_.clear();
  Take(scheduler_.Reset(now_));
  rank_.Restart();
  scheduler_.CheckInvariants();
}

int PuppetGroup::RunUntilIdle(int max_steps) {
  int steps = 0;
  while (steps < max_steps && Step()) ++steps;
  EXPECT_LT(steps, max_steps);
  return steps;
}

void PuppetGroup::ExpectSolo(uint64_t id) {
  const Outputs& outputs = outputs_[id];
  EXPECT_EQ(outputs.num_terminal_events, 1) << "request " << id;
  ASSERT_TRUE(outputs.outcome.has_value()) << "request " << id;
  EXPECT_TRUE(outputs.outcome->status.ok()) << "request " << id << ": " << outputs.outcome->status;
  EXPECT_EQ(outputs.token_ids, PuppetRank::Solo(requests_[id])) << "request " << id;
  ExpectPromptLogprobs(requests_[id], outputs.prompt_logprobs);
}

void PuppetGroup::ExpectAllSolo() {
  for (const auto& [id, request] : requests_) ExpectSolo(id);
}

void PuppetGroup::ExpectSoloUnlessCut() {
  for (const auto& [id, request] : requests_) {
    const Outputs& outputs = outputs_[id];
    ASSERT_EQ(outputs.num_terminal_events, 1) << "request " << id;
    const std::vector<uint32_t> solo = PuppetRank::Solo(request);
    if (outputs.outcome->status.ok()) {
      EXPECT_EQ(outputs.token_ids, solo) << "request " << id;
      ExpectPromptLogprobs(request, outputs.prompt_logprobs);
    } else {
      ASSERT_LE(outputs.token_ids.size(), solo.size());
      EXPECT_TRUE(std::equal(outputs.token_ids.begin(), outputs.token_ids.end(), solo.begin()))
          << "request " << id;
    }
  }
}

void PuppetGroup::ExpectIdle() {
  EXPECT_FALSE(scheduler_.has_work());
  const SchedulerStats stats = scheduler_.stats();
  EXPECT_EQ(stats.num_queued, 0u);
  EXPECT_EQ(stats.num_running, 0u);
  EXPECT_EQ(stats.num_held_blocks, 0u);
}

}  // namespace shoal::router
