// What GroupControl adds to its Group and Scheduler; the simulation drives all of it.

#include "router/control/group_control.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/control/retry_hint.h"
#include "tests/router_control/puppet_cluster.h"
#include "tests/router_control/puppet_group.h"

namespace shoal::router {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class GroupControlTest : public testing::Test {
 protected:
  static GroupControlOptions Options(uint32_t num_stages, absl::Duration inter_token_target) {
    GroupControlOptions options;
    options.inter_token_target = inter_token_target;
    options.group.pipeline_parallel_size = num_stages;
    options.group.version = "1";
    options.group.protocol_version = 1;
    options.scheduler = SmallOptions(/*max_plans_in_flight=*/2);
    options.scheduler.num_blocks = 1;  // the ranks know better
    return options;
  }

  explicit GroupControlTest(uint32_t num_stages = 1,
                            absl::Duration inter_token_target = absl::ZeroDuration())
      : num_ranks_(num_stages),
        control_(Options(num_stages, inter_token_target)),
        rank_(PuppetOptions(num_stages)) {
    control_.Start(now_);
  }

  static SchedulerOptions PuppetOptions(uint32_t num_stages) {
    SchedulerOptions options = SmallOptions(2);
    options.num_stages = num_stages;
    return options;
  }
  void Join() {
    for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
      control_.OnGroupEvent(now_, RankAnswered{rank, PuppetCluster::Info(SmallOptions(2), 0)});
    }
    const uint64_t epoch = control_.group().epoch();
    for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
      control_.OnGroupEvent(now_, RankJoined{rank, epoch});
    }
    for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
      control_.OnGroupEvent(now_, StreamOpened{rank, epoch});
    }
    control_.TakeActions();
  }
  static Request MakeRequest(uint64_t id, uint32_t num_prompt = 20) {
    Request request;
    request.id = id;
    request.token_ids = Prompt(num_prompt, static_cast<uint32_t>(id));
    request.max_tokens = 8;
    request.sampling.seed = id;
    return request;
  }
  // The plans of the actions so far.
  std::vector<StepPlan> TakePlans() {
    std::vector<StepPlan> plans;
    for (ControlAction& action : control_.TakeActions()) {
      if (auto* step = std::get_if<SendStep>(&action)) plans.push_back(std::move(step->plan));
    }
    return plans;
  }
  // All ranks do, with the tokens of the last stage.
  void Answer(const StepPlan& plan) {
    StepReplied reply{0, control_.group().epoch(), plan.step,
                      0, base::kTokenHashSeed,     rank_.Execute(plan).outputs};
    reply.state_hash = rank_.state_hash();
    for (const RowOutput& output : reply.outputs) {
      reply.token_hash = base::AddToTokenHash(reply.token_hash, output.slot, output.token_ids);
    }
    for (reply.rank = 0; reply.rank < num_ranks_; ++reply.rank) {
      control_.OnGroupEvent(now_, reply);
    }
  }

  const uint32_t num_ranks_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  GroupControl control_;
  PuppetRank rank_;
};

class PipelineControlTest : public GroupControlTest {
 protected:
  PipelineControlTest() : GroupControlTest(/*num_stages=*/2) {}
};

TEST_F(GroupControlTest, NothingIsAcceptedOrPlannedBeforeTheGroupIsReady) {
  EXPECT_TRUE(absl::IsUnavailable(control_.Submit(now_, {MakeRequest(1)})));
  EXPECT_FALSE(control_.Plan(now_));
  EXPECT_EQ(control_.scheduler(), nullptr);
  Join();
  EXPECT_TRUE(control_.Submit(now_, {MakeRequest(1)}).ok());
  EXPECT_EQ(control_.scheduler()->options().num_blocks, 64u) << "the ranks' limits";
}

TEST_F(GroupControlTest, ChoicesAreAcceptedTogetherOrNotAtAll) {
  Join();
  const absl::Status status = control_.Submit(now_, {MakeRequest(1), MakeRequest(2, 100000)});
  EXPECT_THAT(status.message(), HasSubstr("max_seq_len"));
  EXPECT_FALSE(control_.scheduler()->has_work());
  EXPECT_THAT(control_.TakeEvents(), IsEmpty());
}

TEST_F(GroupControlTest, OnePlanACallAndTheNextAheadOfTheFirstOnesAnswer) {
  Join();
  ASSERT_TRUE(control_.Submit(now_, {MakeRequest(1)}).ok());
  EXPECT_TRUE(control_.Plan(now_));
  EXPECT_THAT(TakePlans(), SizeIs(1));
  EXPECT_TRUE(control_.Plan(now_));
  EXPECT_FALSE(control_.Plan(now_)) << "two are with the ranks";
  EXPECT_THAT(TakePlans(), SizeIs(1));
}

TEST_F(GroupControlTest, ThePlanAfterALongStepIsMadeShortlyBeforeItsEnd) {
  Join();
  ASSERT_TRUE(control_.Submit(now_, {MakeRequest(1)}).ok());
  for (int i = 0; i < 6; ++i) {  // steps of 50 ms: one of 20 tokens, then of one
    ASSERT_TRUE(control_.Plan(now_));
    now_ += absl::Milliseconds(50);
    Answer(TakePlans().at(0));
  }
  ASSERT_TRUE(control_.Plan(now_));
  EXPECT_FALSE(control_.Plan(now_)) << "too early: who arrives now could not join it";
  const absl::Time due = now_ + absl::Milliseconds(50) - CostModel::kPlanningLead;
  EXPECT_LT(absl::AbsDuration(control_.NextDeadline() - due), absl::Milliseconds(4));
  now_ = control_.NextDeadline();
  EXPECT_TRUE(control_.Plan(now_));
}

TEST_F(PipelineControlTest, ThePlanForTheNextStageIsMadeAtOnceHoweverLongStepsAre) {
  Join();
  ASSERT_TRUE(control_.Submit(now_, {MakeRequest(1), MakeRequest(2)}).ok());
  for (int i = 0; i < 4; ++i) {  // of 50 ms each
    ASSERT_TRUE(control_.Plan(now_));
    now_ += absl::Milliseconds(50);
    Answer(TakePlans().at(0));
  }
  EXPECT_TRUE(control_.Plan(now_));
  EXPECT_TRUE(control_.Plan(now_));
  EXPECT_THAT(TakePlans(), SizeIs(2));
}

class DeadlineControlTest : public GroupControlTest {
 protected:
  explicit DeadlineControlTest(absl::Duration inter_token_target = absl::ZeroDuration())
      : GroupControlTest(/*num_stages=*/1, inter_token_target) {}

  // Steps that take 1 ms and 1 ms a token.
  void RunSteps(int most = 1 << 20) {
    for (int i = 0; i < most && control_.Plan(now_); ++i) {
      const StepPlan plan = TakePlans().at(0);
      uint32_t num_tokens = 0;
      for (const StepRow& row : plan.rows) num_tokens += row.num_tokens;
      now_ += absl::Milliseconds(1 + num_tokens);
      Answer(plan);
      control_.OnTimer(now_);
    }
  }
  void Learn() {
    for (uint64_t id = 1; id <= 12; ++id) {
      ASSERT_TRUE(control_.Submit(now_, {MakeRequest(id, 10 * id)}).ok());
      RunSteps();
    }
    control_.TakeEvents();
  }
  Request DueIn(uint64_t id, uint32_t num_prompt, absl::Duration time) {
    Request request = MakeRequest(id, num_prompt);
    request.token_ids = Prompt(num_prompt, static_cast<uint32_t>(100 + id));
    request.arrival = now_;
    request.deadline = now_ + time;
    return request;
  }
};

TEST_F(DeadlineControlTest, WhatCannotMakeItsDeadlineIsRefusedAtTheDoor) {
  Join();
  EXPECT_TRUE(control_.Submit(now_, {DueIn(50, 400, absl::Milliseconds(1))}).ok())
      << "nothing is known of steps yet";
  control_.Cancel(now_, 50, "by the test");
  Learn();
  EXPECT_TRUE(control_.Submit(now_, {DueIn(51, 120, absl::Milliseconds(200))}).ok());
  RunSteps();
  // 400 tokens are seven steps of 64 tokens: about 410 ms.
  const absl::Status alone = control_.Submit(now_, {DueIn(52, 400, absl::Milliseconds(200))});
  EXPECT_EQ(alone.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(alone.message(),
              AllOf(HasSubstr("after the deadline in 200ms"), HasSubstr("which alone take")));
  EXPECT_EQ(RetryHint(alone), absl::InfiniteDuration()) << "it would be no better later";
  EXPECT_FALSE(control_.scheduler()->has_work());
}

TEST_F(DeadlineControlTest, WhoIsRefusedIsToldWhenToComeBack) {
  Join();
  Learn();
  ASSERT_TRUE(control_.Submit(now_, {DueIn(60, 450, absl::Seconds(10))}).ok());
  RunSteps(1);
  const absl::Status behind = control_.Submit(now_, {DueIn(61, 60, absl::Milliseconds(500))});
  EXPECT_TRUE(behind.ok()) << "its deadline comes first: " << behind;
  control_.Cancel(now_, 61, "by the test");
  Request urgent = DueIn(62, 60, absl::Milliseconds(200));
  const absl::Status status = control_.Submit(now_, {urgent});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr("retry later"));
  const auto hint = RetryHint(status);
  ASSERT_TRUE(hint.has_value());
  EXPECT_GT(*hint, absl::Milliseconds(100));
  EXPECT_LT(*hint, absl::Milliseconds(600));
  // That is when it can be had.
  const absl::Time again = now_ + *hint;
  while (now_ < again) RunSteps(1);
  urgent.arrival = now_;
  urgent.deadline = now_ + absl::Milliseconds(200);
  EXPECT_TRUE(control_.Submit(now_, {urgent}).ok());
}

class PacedControlTest : public DeadlineControlTest {
 protected:
  PacedControlTest() : DeadlineControlTest(absl::Milliseconds(30)) {}
};

TEST_F(PacedControlTest, PromptsAreCutSoThatTokensKeepComing) {
  Join();
  Learn();
  ASSERT_TRUE(control_.Submit(now_, {MakeRequest(70, 10)}).ok());
  RunSteps(2);
  ASSERT_TRUE(control_.Submit(now_, {DueIn(71, 400, absl::Seconds(10))}).ok());
  absl::Duration longest = absl::ZeroDuration();
  for (int i = 0; i < 5; ++i) {
    const absl::Time before = now_;
    RunSteps(1);
    longest = std::max(longest, now_ - before);
  }
  EXPECT_GT(longest, absl::Milliseconds(22)) << "as much as fits";
  EXPECT_LT(longest, absl::Milliseconds(38));
}

// Its first step after a pause goes through all stages while nothing else is with the ranks.
TEST_F(PipelineControlTest, AStepHasTimeForEachOfItsStages) {
  Join();
  ASSERT_TRUE(control_.Submit(now_, {MakeRequest(1)}).ok());
  for (int i = 0; i < 7; ++i) {
    ASSERT_TRUE(control_.Plan(now_));
    now_ += absl::Seconds(2);
    Answer(TakePlans().at(0));
  }
  ASSERT_TRUE(control_.Plan(now_));
  EXPECT_GT(control_.group().NextDeadline() - now_, absl::Seconds(30));
  EXPECT_LT(control_.group().NextDeadline() - now_, absl::Seconds(50));
}

TEST_F(GroupControlTest, StepTimeIsThatWithPlansUnderWay) {
  Join();
  ASSERT_TRUE(control_.Submit(now_, {MakeRequest(1)}).ok());
  now_ += absl::Milliseconds(30);  // nothing is planned yet
  ASSERT_TRUE(control_.Plan(now_));
  now_ += absl::Milliseconds(10);
  ASSERT_TRUE(control_.Plan(now_));
  now_ += absl::Milliseconds(5);
  for (const StepPlan& plan : TakePlans()) {
    Answer(plan);
    now_ += absl::Milliseconds(2);
  }
  now_ += absl::Milliseconds(40);  // and none is
  EXPECT_EQ(control_.counters().step_time, absl::Milliseconds(17));
}

TEST_F(GroupControlTest, AResultThatDoesNotFitThePlanLosesTheGroupAndNoToken) {
  Join();
  ASSERT_TRUE(control_.Submit(now_, {MakeRequest(1)}).ok());
  ASSERT_TRUE(control_.Plan(now_));
  StepPlan plan = TakePlans().at(0);
  control_.OnGroupEvent(
      now_, StepReplied{
                0, control_.group().epoch(), plan.step, plan.state_hash, base::kTokenHashSeed, {}});
  EXPECT_EQ(control_.group().num_losses(), 1u);
  EXPECT_THAT(control_.TakeEvents(), IsEmpty());
  EXPECT_EQ(control_.counters().num_steps, 0u);
  control_.CheckInvariants();
  control_.TakeActions();
  now_ += absl::Seconds(1);
  control_.OnTimer(now_);
  Join();
  std::vector<uint32_t> tokens;
  while (control_.Plan(now_) || control_.scheduler()->has_work()) {
    for (const StepPlan& next : TakePlans()) Answer(next);
    for (const Event& event : control_.TakeEvents()) {
      tokens.insert(tokens.end(), event.token_ids.begin(), event.token_ids.end());
    }
  }
  EXPECT_EQ(tokens, PuppetRank::Solo(MakeRequest(1)));
  EXPECT_EQ(control_.counters().num_generated_tokens, 8u);
}

TEST_F(GroupControlTest, FailedRequestsAreToldAndSaid) {
  Join();
  ASSERT_TRUE(control_.Submit(now_, {MakeRequest(1)}).ok());
  control_.OnGroupEvent(now_,
                        StreamClosed{0, control_.group().epoch(), absl::UnavailableError("eof")});
  now_ += absl::Seconds(61);
  control_.TakeActions();
  control_.OnTimer(now_);
  const std::vector<Event> events = control_.TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_TRUE(absl::IsUnavailable(events[0].outcome.status));
  const std::vector<ControlAction> actions = control_.TakeActions();
  EXPECT_TRUE(std::holds_alternative<FailRequests>(actions.back()));
}

}  // namespace
}  // namespace shoal::router
