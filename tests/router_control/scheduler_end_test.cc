// Requests that end before their text does: cancels, deadlines, stalls.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router_control/puppet_group.h"

namespace shoal::router {
namespace {

using testing::SizeIs;

class SchedulerEndTest : public testing::TestWithParam<uint32_t> {
 protected:
  static SchedulerOptions Small() { return SmallOptions(/*max_plans_in_flight=*/GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(PlansInFlight, SchedulerEndTest, testing::Values(1, 2));

TEST_P(SchedulerEndTest, ACancelInFlightFreesBlocksAtTheCommitOfTheLastPlan) {
  PuppetGroup group(Small());
  const uint64_t id = group.Submit(group.Make(Prompt(50, 1), 100));
  const uint64_t other = group.Submit(group.Make(Prompt(50, 2), 20));
  group.Step();
  group.Plan();
  group.Cancel(id);
  EXPECT_EQ(group.of(id).outcome->reason, FinishReason::kCancelled);
  EXPECT_EQ(group.of(id).outcome->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(group.scheduler().stats().num_held_blocks, 8u) << "the ranks still write to them";
  while (group.in_flight().size() > 1) {
    group.Commit();
    EXPECT_EQ(group.scheduler().stats().num_held_blocks, 8u) << "and so does the next plan";
  }
  group.Commit();
  EXPECT_EQ(group.scheduler().stats().num_held_blocks, 4u);
  group.Cancel(id);
  group.RunUntilIdle();
  group.ExpectSolo(other);
  group.ExpectIdle();
}

TEST_P(SchedulerEndTest, AnIdMayComeBackWhileItsOldPlanRuns) {
  PuppetGroup group(Small());
  Request request = group.Make(Prompt(50, 1), 100);
  group.Submit(request);
  group.Plan();
  group.Cancel(request.id);
  request.max_tokens = 7;
  group.Submit(request);
  group.Commit();
  group.RunUntilIdle();
  group.ExpectSolo(request.id);
}

TEST_P(SchedulerEndTest, AThousandAbortedStreamsLeaveNothingBehind) {
  PuppetGroup group(Small());
  std::mt19937 random(4);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t id = group.Submit(group.Make(Prompt(1 + random() % 90, i % 7), 50));
    for (int steps = random() % 4; steps > 0; --steps) group.Step();
    if (random() % 2 == 0) group.Plan();
    group.Cancel(id);
    if (random() % 2 == 0) group.Step();
  }
  group.RunUntilIdle();
  group.ExpectIdle();
  const uint64_t id = group.Submit(group.Make(Prompt(30, 1000), 10));
  EXPECT_EQ(group.RunUntilIdle(), 10);
  group.ExpectSolo(id);
}

TEST_P(SchedulerEndTest, DeadlinesEndRequestsWhereverTheyAre) {
  SchedulerOptions options = Small();
  options.max_batch_seqs = 1;
  PuppetGroup group(options);
  Request running = group.Make(Prompt(20, 1), 100);
  running.deadline = group.now() + absl::Seconds(2);
  group.Submit(running);
  Request waiting = group.Make(Prompt(20, 2), 100);
  waiting.deadline = group.now() + absl::Seconds(3);
  group.Submit(waiting);
  const uint64_t patient = group.Submit(group.Make(Prompt(20, 3), 5));
  group.Step();
  EXPECT_EQ(group.scheduler().NextDeadline(), running.deadline);
  group.Expire();
  EXPECT_FALSE(group.of(running.id).outcome.has_value());
  group.Plan();
  group.Advance(absl::Seconds(4));
  group.Expire();
  for (uint64_t id : {running.id, waiting.id}) {
    ASSERT_TRUE(group.of(id).outcome.has_value());
    EXPECT_EQ(group.of(id).outcome->reason, FinishReason::kDeadline);
    EXPECT_EQ(group.of(id).outcome->status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  group.Commit();
  group.RunUntilIdle();
  group.ExpectSolo(patient);
  EXPECT_EQ(group.scheduler().NextDeadline(), absl::InfiniteFuture());
}

TEST_P(SchedulerEndTest, AStallIsCountedOnceAndEndsWithProgress) {
  PuppetGroup group(Small());
  group.Submit(group.Make(Prompt(10, 1), 30));
  group.Plan();
  group.Advance(absl::Seconds(9));
  group.Expire();
  EXPECT_FALSE(group.scheduler().is_stalled());
  EXPECT_EQ(group.scheduler().NextDeadline(), group.now() + absl::Seconds(1));
  group.Advance(absl::Seconds(1));
  group.Expire();
  group.Expire();
  EXPECT_TRUE(group.scheduler().is_stalled());
  EXPECT_EQ(group.scheduler().stats().num_stalls, 1u);
  group.Commit();
  EXPECT_FALSE(group.scheduler().is_stalled());
  group.RunUntilIdle();
  group.Advance(absl::Hours(1));
  group.Expire();
  EXPECT_EQ(group.scheduler().stats().num_stalls, 1u) << "idle is no stall";
}

// Who is not ready gets no new request, and without a request there is no progress that could end a
// stall: it must end with the work.
TEST_P(SchedulerEndTest, AStallEndsWithTheWork) {
  PuppetGroup group(Small());
  const uint64_t first = group.Submit(group.Make(Prompt(10, 1), 30));
  group.Plan();
  group.Advance(absl::Seconds(10));
  group.Expire();
  EXPECT_TRUE(group.scheduler().is_stalled());
  group.Cancel(first);
  EXPECT_FALSE(group.scheduler().is_stalled());
  group.Submit(group.Make(Prompt(10, 2), 30));
  EXPECT_FALSE(group.scheduler().is_stalled()) << "the new request has its own time";
  group.CommitAll();
  group.Plan();
  group.Advance(absl::Seconds(10));
  group.Expire();
  EXPECT_TRUE(group.scheduler().is_stalled());
  EXPECT_EQ(group.scheduler().stats().num_stalls, 2u);
}

TEST_P(SchedulerEndTest, FailAllEndsEveryRequest) {
  PuppetGroup group(Small());
  for (uint32_t i = 0; i < 20; ++i) group.Submit(group.Make(Prompt(30, i), 60));
  group.Step();
  group.Plan();
  const std::vector<Event> events =
      group.scheduler().FailAll(group.now(), absl::UnavailableError("the group is gone"));
  EXPECT_THAT(events, SizeIs(20));
  for (const Event& event : events) {
    EXPECT_EQ(event.kind, Event::Kind::kFinished);
    EXPECT_EQ(event.outcome.status.code(), absl::StatusCode::kUnavailable);
  }
  group.Lose();
  group.ExpectIdle();
}

}  // namespace
}  // namespace shoal::router
