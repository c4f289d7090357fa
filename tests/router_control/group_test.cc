#include "router/control/group.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router_control/puppet_cluster.h"
#include "tests/router_control/puppet_group.h"

namespace shoal::router {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

SchedulerOptions Limits(uint32_t max_plans_in_flight = 2) {
  SchedulerOptions options;
  options.max_plans_in_flight = max_plans_in_flight;
  options.num_blocks = 64;
  options.max_batch_tokens = 64;
  options.max_batch_seqs = 8;
  options.max_seq_len = 512;
  return options;
}

GroupOptions TwoShards() {
  GroupOptions options;
  options.tensor_parallel_size = 2;
  options.version = "1";
  options.protocol_version = 1;
  return options;
}

// Sends events to a Group and shows its actions as words.
class GroupTest : public testing::Test {
 protected:
  explicit GroupTest(const GroupOptions& options = TwoShards()) : group_(options) {
    EXPECT_THAT(Words(group_.Start(now_)), Contains("probe 0"));
  }

  static std::vector<std::string> Words(const std::vector<GroupAction>& actions) {
    std::vector<std::string> words;
    for (const GroupAction& action : actions) words.push_back(ToString(action));
    return words;
  }

  std::vector<std::string> Do(const GroupEvent& event) {
    return Words(group_.OnEvent(now_, event));
  }

  static RankInfo Info(uint32_t rank = 0) { return PuppetCluster::Info(Limits(), rank); }

  void AnswerAll() {
    for (uint32_t rank = 0; rank < group_.num_ranks(); ++rank) Do(RankAnswered{rank, Info(rank)});
  }

  void BecomeReady() {
    AnswerAll();
    const uint64_t epoch = group_.epoch();
    for (uint32_t rank = 0; rank < group_.num_ranks(); ++rank) Do(RankJoined{rank, epoch});
    for (uint32_t rank = 0; rank < group_.num_ranks(); ++rank) Do(StreamOpened{rank, epoch});
    ASSERT_EQ(group_.state(), Group::State::kReady);
  }

  StepReplied Reply(uint32_t rank, uint64_t step) {
    StepReplied reply{.rank = rank,
                      .epoch = group_.epoch(),
                      .step = step,
                      .state_hash = 77,
                      .token_hash = 0,
                      .outputs = {}};
    RowOutput output;
    output.token_ids = {5};
    reply.token_hash = base::AddToTokenHash(base::kTokenHashSeed, 0, output.token_ids);
    if (rank == 0) reply.outputs = {output};
    return reply;
  }

  void RunStep(uint64_t step) {
    Do(PlanMade{step, 77, absl::ZeroDuration()});
    Do(Reply(0, step));
    EXPECT_THAT(Do(Reply(1, step)), ElementsAre("commit " + std::to_string(step)));
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  Group group_;
};

TEST_F(GroupTest, JoinsWhenAllRanksAgreeAndIsReadyWhenAllStreamsAreOpen) {
  EXPECT_THAT(Do(RankAnswered{1, Info(1)}), IsEmpty());
  EXPECT_THAT(Do(RankAnswered{0, Info(0)}), ElementsAre("join 0 @1", "join 1 @1"));
  EXPECT_THAT(Do(RankJoined{0, 1}), IsEmpty());
  EXPECT_THAT(Do(RankJoined{1, 1}), ElementsAre("open 0 @1", "open 1 @1"));
  EXPECT_THAT(Do(StreamOpened{1, 1}), IsEmpty());
  EXPECT_NE(group_.state(), Group::State::kReady);
  EXPECT_FALSE(group_.accepts_requests());
  EXPECT_THAT(Do(StreamOpened{0, 1}), IsEmpty());
  EXPECT_EQ(group_.state(), Group::State::kReady);
  EXPECT_EQ(group_.identity().num_blocks, 64u) << "the smallest";
  EXPECT_EQ(group_.NextDeadline(), absl::InfiniteFuture()) << "idle costs nothing";
}

TEST_F(GroupTest, TheEpochIsAboveAllThatTheRanksHaveSeen) {
  RankInfo info = Info(0);
  info.highest_epoch = 41;
  Do(RankAnswered{0, info});
  EXPECT_THAT(Do(RankAnswered{1, Info(1)}), ElementsAre("join 0 @42", "join 1 @42"));
}

TEST_F(GroupTest, RanksThatDisagreeAreRefusedByName) {
  struct Case {
    const char* field;
    void (*change)(RankInfo*);
  };
  const Case cases[] = {
      {"version '2'", [](RankInfo* info) { info->version = "2"; }},
      {"protocol version '9'", [](RankInfo* info) { info->protocol_version = 9; }},
      {"model fingerprint 'x'", [](RankInfo* info) { info->model_fingerprint = "x"; }},
      {"numerics id 'cuda'", [](RankInfo* info) { info->numerics_id = "cuda"; }},
      {"block size '32'", [](RankInfo* info) { info->block_size = 32; }},
      {"max_batch_tokens '1'", [](RankInfo* info) { info->max_batch_tokens = 1; }},
      {"max_batch_seqs '1'", [](RankInfo* info) { info->max_batch_seqs = 1; }},
      {"max_seq_len '1'", [](RankInfo* info) { info->max_seq_len = 1; }},
  };
  for (const Case& c : cases) {
    RankInfo info = Info(1);
    c.change(&info);
    Do(RankAnswered{0, Info(0)});
    Do(RankAnswered{1, info});
    EXPECT_EQ(group_.state(), Group::State::kProbing) << c.field;
    EXPECT_THAT(group_.last_failure().message(), AllOf(HasSubstr("rank 1"), HasSubstr(c.field)));
    now_ += absl::Seconds(2);
    Do(TimerFired{});
  }
  BecomeReady();
}

TEST_F(GroupTest, APlanGoesOutAndCommitsWhenAllRanksAnswered) {
  BecomeReady();
  EXPECT_THAT(Do(PlanMade{1, 77, absl::ZeroDuration()}), ElementsAre("send 1 @1"));
  EXPECT_THAT(Do(Reply(1, 1)), IsEmpty());
  EXPECT_THAT(Do(Reply(0, 1)), ElementsAre("commit 1"));
  EXPECT_EQ(group_.num_steps_in_flight(), 0u);
}

TEST_F(GroupTest, PlansMadeAheadAreAnsweredAndCommittedInOrder) {
  BecomeReady();
  Do(PlanMade{1, 77, absl::ZeroDuration()});
  EXPECT_THAT(Do(PlanMade{2, 78, absl::ZeroDuration()}), ElementsAre("send 2 @1"));
  EXPECT_EQ(group_.num_steps_in_flight(), 2u);
  StepReplied second = Reply(0, 2);
  second.state_hash = 78;
  EXPECT_THAT(Do(Reply(0, 1)), IsEmpty());
  EXPECT_THAT(Do(second), IsEmpty());
  EXPECT_THAT(Do(Reply(1, 1)), ElementsAre("commit 1"));
  second = Reply(1, 2);
  second.state_hash = 78;
  EXPECT_THAT(Do(second), ElementsAre("commit 2"));
  EXPECT_EQ(group_.num_steps_in_flight(), 0u);
}

TEST_F(GroupTest, AnAnswerOutOfOrderLosesTheGroup) {
  BecomeReady();
  Do(PlanMade{1, 77, absl::ZeroDuration()});
  Do(PlanMade{2, 77, absl::ZeroDuration()});
  EXPECT_THAT(Do(Reply(1, 2)), Contains("replay"));
  EXPECT_THAT(group_.last_failure().message(),
              AllOf(HasSubstr("rank 1 answers step 2"), HasSubstr("not 1")));
  EXPECT_EQ(group_.num_steps_in_flight(), 0u);
}

TEST_F(GroupTest, AClosedStreamLosesTheGroup) {
  BecomeReady();
  RunStep(1);
  EXPECT_THAT(Do(StreamClosed{1, 1, absl::UnavailableError("eof")}),
              ElementsAre("abort 0 @1", "abort 1 @1", "replay", "probe 0", "probe 1"));
  EXPECT_THAT(group_.last_failure().message(), AllOf(HasSubstr("rank 1"), HasSubstr("eof")));
  EXPECT_TRUE(group_.accepts_requests());
  Do(RankAnswered{0, Info(0)});
  EXPECT_THAT(Do(RankAnswered{1, Info(1)}), ElementsAre("join 0 @2", "join 1 @2"));
}

TEST_F(GroupTest, AnswersOfAnOldEpochChangeNothing) {
  BecomeReady();
  RunStep(1);
  Do(PlanMade{2, 77, absl::ZeroDuration()});
  const StepReplied late = Reply(0, 2);
  Do(StreamClosed{1, 1, absl::UnavailableError("eof")});
  EXPECT_THAT(Do(StreamClosed{0, 1, absl::UnavailableError("eof")}), IsEmpty());
  BecomeReady();
  EXPECT_THAT(Do(late), IsEmpty());
  EXPECT_THAT(Do(StreamClosed{0, 1, absl::UnavailableError("eof")}), IsEmpty());
  EXPECT_THAT(Do(RankJoined{0, 1}), IsEmpty());
  EXPECT_THAT(Do(RankFailed{0, 1, absl::UnavailableError("eof")}), IsEmpty());
  EXPECT_EQ(group_.state(), Group::State::kReady);
}

TEST_F(GroupTest, HashesThatDifferLoseTheGroup) {
  BecomeReady();
  for (int kind = 0; kind < 4; ++kind) {
    const uint64_t step = kind + 1;
    Do(PlanMade{step, 77, absl::ZeroDuration()});
    StepReplied reply = Reply(kind == 1 ? 0 : 1, step);
    if (kind == 0) reply.state_hash = 78;
    if (kind == 1) reply.outputs[0].token_ids[0] = 6;
    if (kind == 2) {
      EXPECT_THAT(Do(Reply(0, step)), IsEmpty());
      reply.token_hash = 1;
    }
    if (kind == 3) reply.step = 99;
    EXPECT_THAT(Do(reply), Contains("replay")) << kind;
    EXPECT_THAT(group_.last_failure().message(), HasSubstr(kind == 1 ? "rank 0" : "rank 1"));
    now_ += absl::Seconds(2);
    Do(TimerFired{});
    BecomeReady();
  }
  Do(PlanMade{9, 77, absl::ZeroDuration()});
  EXPECT_THAT(Do(ResultRefused{absl::InternalError("odd")}), Contains("replay"));
}

TEST_F(GroupTest, AMissedStepDeadlineLosesTheGroupAndNamesTheRank) {
  BecomeReady();
  for (uint64_t step = 1; step <= 3; ++step) RunStep(step);
  Do(PlanMade{4, 77, absl::ZeroDuration()});
  Do(Reply(0, 4));
  EXPECT_EQ(group_.NextDeadline(), now_ + absl::Seconds(5));
  now_ += absl::Seconds(4);
  EXPECT_THAT(Do(TimerFired{}), IsEmpty());
  now_ += absl::Seconds(1);
  EXPECT_THAT(Do(TimerFired{}), Contains("replay"));
  EXPECT_THAT(group_.last_failure().message(), AllOf(HasSubstr("step 4"), HasSubstr("rank 1")));
}

// A rank that hangs while its group recovers is found as soon as any other.
TEST_F(GroupTest, OnlyTheFirstStepsOfAllHaveLonger) {
  BecomeReady();
  Do(PlanMade{1, 77, absl::ZeroDuration()});
  EXPECT_EQ(group_.NextDeadline(), now_ + absl::Seconds(60));
  Do(Reply(0, 1));
  Do(Reply(1, 1));
  for (uint64_t step = 2; step <= 3; ++step) RunStep(step);
  Do(StreamClosed{1, group_.epoch(), absl::UnavailableError("it died")});
  now_ += absl::Seconds(1);
  Do(TimerFired{});
  BecomeReady();
  Do(PlanMade{4, 77, absl::Seconds(2)});
  EXPECT_EQ(group_.NextDeadline(), now_ + absl::Seconds(20));
}

TEST_F(GroupTest, TheClockOfAStepStartsWhenTheOneBeforeIsCommitted) {
  BecomeReady();
  for (uint64_t step = 1; step <= 3; ++step) RunStep(step);
  Do(PlanMade{4, 77, absl::ZeroDuration()});
  Do(PlanMade{5, 77, absl::Seconds(1)});
  EXPECT_EQ(group_.NextDeadline(), now_ + absl::Seconds(5));
  now_ += absl::Seconds(4);
  Do(Reply(0, 4));
  Do(Reply(0, 5));
  EXPECT_EQ(group_.NextDeadline(), now_ + absl::Seconds(1)) << "one rank's answer is not enough";
  Do(Reply(1, 4));
  EXPECT_EQ(group_.NextDeadline(), now_ + absl::Seconds(10));
  now_ += absl::Seconds(10);
  EXPECT_THAT(Do(TimerFired{}), Contains("replay"));
  EXPECT_THAT(group_.last_failure().message(), AllOf(HasSubstr("step 5"), HasSubstr("rank 1")));
}

TEST_F(GroupTest, LongAndFirstStepsHaveMoreTime) {
  BecomeReady();
  Do(PlanMade{1, 77, absl::ZeroDuration()});
  EXPECT_EQ(group_.NextDeadline(), now_ + absl::Seconds(60));
  Do(Reply(0, 1));
  Do(Reply(1, 1));
  for (uint64_t step = 2; step <= 3; ++step) RunStep(step);
  Do(PlanMade{4, 77, absl::Seconds(2)});
  EXPECT_EQ(group_.NextDeadline(), now_ + absl::Seconds(20));
}

TEST_F(GroupTest, AJoinThatHangsIsTriedAgain) {
  AnswerAll();
  Do(RankJoined{0, 1});
  now_ += absl::Seconds(30);
  EXPECT_EQ(group_.NextDeadline(), now_);
  EXPECT_THAT(Do(TimerFired{}), ElementsAre("abort 0 @1", "abort 1 @1", "probe 0", "probe 1"));
  EXPECT_THAT(group_.last_failure().message(), HasSubstr("rank 0, 1 did not join"));
  BecomeReady();
  EXPECT_EQ(group_.epoch(), 2u);
}

TEST_F(GroupTest, ARankThatDoesNotAnswerIsAskedAgainLessAndLessOften) {
  std::vector<absl::Duration> pauses;
  for (int i = 0; i < 6; ++i) {
    Do(RankFailed{1, 0, absl::UnavailableError("refused")});
    pauses.push_back(group_.NextDeadline() - now_);
    now_ = group_.NextDeadline();
    EXPECT_THAT(Do(TimerFired{}), ElementsAre("probe 1"));
  }
  using absl::Milliseconds;
  EXPECT_THAT(pauses, ElementsAre(Milliseconds(100), Milliseconds(200), Milliseconds(400),
                                  Milliseconds(800), Milliseconds(1000), Milliseconds(1000)));
}

TEST_F(GroupTest, ARankThatLetsAProbesDeadlinePassIsReplacedAndOneThatIsDeadIsNot) {
  BecomeReady();
  Do(StreamClosed{1, 1, absl::UnavailableError("no ping")});
  EXPECT_THAT(Do(RankFailed{0, 0, absl::UnavailableError("refused")}), IsEmpty());
  EXPECT_THAT(Do(RankFailed{1, 0, absl::DeadlineExceededError("5 s")}), ElementsAre("replace 1"));
  EXPECT_THAT(group_.last_failure().message(), HasSubstr("rank 1: does not answer"));
}

TEST_F(GroupTest, AttemptsThatNeverCommitAStepBackOff) {
  BecomeReady();
  EXPECT_THAT(Do(StreamClosed{1, 1, absl::UnavailableError("eof")}), Contains("probe 0"));
  BecomeReady();
  EXPECT_THAT(Do(StreamClosed{1, 2, absl::UnavailableError("eof")}), Contains("replay"));
  EXPECT_EQ(group_.NextDeadline(), now_ + absl::Milliseconds(100));
}

TEST_F(GroupTest, RequestsFailAfterTheRecoveryTimeoutAndTheGroupKeepsTrying) {
  BecomeReady();
  RunStep(1);
  Do(StreamClosed{1, 1, absl::UnavailableError("eof")});
  Do(RankAnswered{0, Info(0)});
  Do(RankFailed{1, 0, absl::UnavailableError("refused")});
  now_ += absl::Seconds(60);
  EXPECT_THAT(Do(TimerFired{}),
              ElementsAre("probe 1", AllOf(StartsWith("fail: "), HasSubstr("rank 1"))));
  EXPECT_FALSE(group_.accepts_requests());
  EXPECT_THAT(Do(RankAnswered{1, Info(1)}), ElementsAre("join 0 @2", "join 1 @2"));
}

TEST_F(GroupTest, AGroupThatWasReadyTakesBackOnlyTheSameModel) {
  BecomeReady();
  RunStep(1);
  Do(StreamClosed{1, 1, absl::UnavailableError("eof")});
  RankInfo other = Info(0);
  other.model_fingerprint = "another";
  Do(RankAnswered{0, other});
  other = Info(1);
  other.model_fingerprint = "another";
  Do(RankAnswered{1, other});
  EXPECT_EQ(group_.state(), Group::State::kProbing);
  EXPECT_THAT(group_.last_failure().message(), HasSubstr("the group so far has 'model'"));
  now_ += absl::Seconds(1);
  Do(TimerFired{});
  RankInfo small = Info(1);
  small.num_blocks = 63;
  Do(RankAnswered{0, Info(0)});
  Do(RankAnswered{1, small});
  EXPECT_THAT(group_.last_failure().message(), HasSubstr("63 blocks"));
}

class PipelineGroupTest : public GroupTest {
 protected:
  static GroupOptions Stages() {
    GroupOptions options = TwoShards();
    options.tensor_parallel_size = 1;
    options.pipeline_parallel_size = 2;
    return options;
  }
  PipelineGroupTest() : GroupTest(Stages()) {}
};

TEST_F(PipelineGroupTest, TheLastStageHasTheTokens) {
  BecomeReady();
  Do(PlanMade{1, 77, absl::ZeroDuration()});
  StepReplied inner = Reply(0, 1);
  inner.outputs.clear();
  inner.token_hash = 0;
  EXPECT_THAT(Do(inner), IsEmpty());
  StepReplied last = Reply(0, 1);
  last.rank = 1;
  const std::vector<GroupAction> actions = group_.OnEvent(now_, last);
  ASSERT_THAT(Words(actions), ElementsAre("commit 1"));
  EXPECT_THAT(std::get<CommitPlan>(actions[0]).result.outputs[0].token_ids, ElementsAre(5));
}

// --- With a scheduler and ranks ---

Request MakeRequest(uint64_t id, uint32_t num_prompt, uint32_t max_tokens, absl::Time now) {
  Request request;
  request.id = id;
  request.token_ids = Prompt(num_prompt, static_cast<uint32_t>(id % 5));
  request.max_tokens = max_tokens;
  request.sampling.seed = id;
  request.arrival = now;
  return request;
}

class ClusterTest : public testing::TestWithParam<uint32_t> {};

INSTANTIATE_TEST_SUITE_P(PlansInFlight, ClusterTest, testing::Values(1, 2));

TEST_P(ClusterTest, StreamsOutliveAKilledRank) {
  for (uint32_t victim : {0, 1}) {
    PuppetCluster cluster(TwoShards(), Limits(GetParam()));
    for (uint64_t id = 1; id <= 10; ++id) cluster.Submit(MakeRequest(id, 30, 40, cluster.now()));
    for (int i = 0; i < 50; ++i) cluster.Step();
    cluster.Kill(victim);
    for (int i = 0; i < 10; ++i) cluster.Step();
    cluster.Restart(victim);
    cluster.RunUntilIdle();
    cluster.ExpectAllSolo();
    EXPECT_EQ(cluster.group().num_losses(), 1u);
  }
}

TEST_P(ClusterTest, AFrozenRankAndAWrongHashAreLosses) {
  PuppetCluster cluster(TwoShards(), Limits(GetParam()));
  for (uint64_t id = 1; id <= 10; ++id) cluster.Submit(MakeRequest(id, 30, 40, cluster.now()));
  for (int i = 0; i < 50; ++i) cluster.Step();
  cluster.Corrupt(1);
  for (int i = 0; i < 50; ++i) cluster.Step();
  EXPECT_EQ(cluster.group().num_losses(), 1u);
  cluster.Freeze(0);
  for (int i = 0; i < 50; ++i) cluster.Step();
  EXPECT_EQ(cluster.group().num_losses(), 2u);
  cluster.Restart(0);
  cluster.RunUntilIdle();
  cluster.ExpectAllSolo();
}

TEST_P(ClusterTest, WithoutARankEveryRequestEndsUnavailable) {
  PuppetCluster cluster(TwoShards(), Limits(GetParam()));
  for (uint64_t id = 1; id <= 10; ++id) cluster.Submit(MakeRequest(id, 30, 40, cluster.now()));
  for (int i = 0; i < 50; ++i) cluster.Step();
  cluster.Kill(1);
  for (int i = 0; i < 1000; ++i) cluster.Step();
  for (uint64_t id = 1; id <= 10; ++id) {
    ASSERT_TRUE(cluster.outcome(id).has_value());
    EXPECT_EQ(cluster.outcome(id)->status.code(), absl::StatusCode::kUnavailable);
  }
  cluster.Restart(1);
  for (int i = 0; i < 20; ++i) cluster.Step();
  EXPECT_EQ(cluster.group().state(), Group::State::kReady);
}

TEST_P(ClusterTest, RandomKillsBetweenStepsChangeNoToken) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    std::mt19937 random(seed);
    PuppetCluster cluster(TwoShards(), Limits(GetParam()));
    for (uint64_t id = 1; id <= 30; ++id) {
      cluster.Submit(MakeRequest(id, 1 + random() % 90, 1 + random() % 60, cluster.now()));
    }
    int num_kills = 0;
    for (int i = 0; i < 600; ++i) {
      if (random() % 40 == 0 && num_kills < 10) {
        cluster.Drain();  // not in a running plan: chance must not make anyone a suspect
        cluster.Kill(random() % 2);
        cluster.Drain();
        ++num_kills;
      }
      if (random() % 10 == 0) {
        cluster.Restart(0);
        cluster.Restart(1);
      }
      cluster.Step(random());
    }
    cluster.Restart(0);
    cluster.Restart(1);
    cluster.RunUntilIdle();
    cluster.ExpectAllSolo();
    EXPECT_GT(num_kills, 0);
    EXPECT_EQ(cluster.num_steps_of(0), cluster.num_steps_of(1));
  }
}

}  // namespace
}  // namespace shoal::router
