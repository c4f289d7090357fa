#include "router/group_shell.h"

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router/fake_rank.h"
#include "tests/router/test_model.h"

namespace shoal::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Keeps what happens to one submission.
class CollectingSink final : public SequenceSink {
 public:
  void OnAdmission(const absl::Status& status) override {
    base::MutexLock lock(&mutex_);
    admission_ = status;
    changed_.SignalAll();
  }
  void OnEvent(const Event& event) override {
    base::MutexLock lock(&mutex_);
    EXPECT_TRUE(admission_.has_value());
    if (event.kind == Event::Kind::kFinished) {
      EXPECT_FALSE(ends_.contains(event.request_id)) << "a second end";
      ends_[event.request_id] = event.outcome;
    } else {
      EXPECT_FALSE(ends_.contains(event.request_id)) << "an event after the end";
      for (const uint32_t id : event.token_ids) {
        texts_[event.request_id] += static_cast<char>(id - ByteToken('\0'));
      }
    }
    changed_.SignalAll();
  }

  absl::Status WaitForAdmission() {
    base::MutexLock lock(&mutex_);
    while (!admission_.has_value()) changed_.Wait(&mutex_);
    return *admission_;
  }
  Outcome WaitForEnd(uint64_t id) {
    base::MutexLock lock(&mutex_);
    while (!ends_.contains(id)) changed_.Wait(&mutex_);
    return ends_[id];
  }
  void WaitForTokens(uint64_t id, size_t count) {
    base::MutexLock lock(&mutex_);
    while (texts_[id].size() < count) changed_.Wait(&mutex_);
  }
  std::string text(uint64_t id) {
    base::MutexLock lock(&mutex_);
    return texts_[id];
  }
  size_t num_ends() {
    base::MutexLock lock(&mutex_);
    return ends_.size();
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  std::optional<absl::Status> admission_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Outcome> ends_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::string> texts_ ABSL_GUARDED_BY(mutex_);
};

// Keeps the log lines that speak of the worker group.
class GroupLog final : public google::LogSink {
 public:
  GroupLog() { google::AddLogSink(this); }
  ~GroupLog() override { google::RemoveLogSink(this); }

  void send(google::LogSeverity severity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message, size_t size) override {
    std::string text(message, size);
    if (!absl::StrContains(text, "the worker group")) return;
    base::MutexLock lock(&mutex_);
    lines_.push_back(absl::StrCat(google::GetLogSeverityName(severity), " ", text));
    changed_.SignalAll();
  }
  std::vector<std::string> WaitForLines(size_t count) {
    base::MutexLock lock(&mutex_);
    while (lines_.size() < count) changed_.Wait(&mutex_);
    return lines_;
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

// A real shell and fake ranks, over real sockets.
class GroupShellTest : public ::testing::Test {
 protected:
  void AddRanks(int count, const FakeRank::Options& options = {}) {
    for (int i = 0; i < count; ++i) {
      options_.addresses.push_back(FakeRank::NewAddress());
      ranks_.push_back(std::make_unique<FakeRank>(options_.addresses.back(), options));
    }
  }

  void StartShell() {
    options_.group.tensor_parallel_size = static_cast<uint32_t>(options_.addresses.size());
    options_.group.version = "v1";
    options_.group.protocol_version = 1;
    options_.group.min_backoff = absl::Milliseconds(5);
    options_.group.max_backoff = absl::Milliseconds(50);
    options_.owner_id = "test-router";
    options_.clock = [this] { return absl::Now() + absl::Seconds(clock_offset_s_.load()); };
    options_.random = [this] { return ++random_; };
    options_.on_readiness = [this](bool is_ready) {
      base::MutexLock lock(&mutex_);
      readiness_changes_.push_back(is_ready);
      changed_.SignalAll();
    };
    shell_ = std::make_unique<GroupShell>(options_);
  }
  void StartReady(int num_ranks) {
    AddRanks(num_ranks);
    StartShell();
    ASSERT_TRUE(shell_->WaitUntilReady(absl::Seconds(20)).ok());
  }
  void WaitForReadinessChanges(size_t count) {
    base::MutexLock lock(&mutex_);
    while (readiness_changes_.size() < count) changed_.Wait(&mutex_);
  }

  static Request MakeRequest(uint64_t id, const std::string& prompt, uint32_t max_tokens) {
    Request request;
    request.id = id;
    request.token_ids = ByteTokens(prompt);
    request.max_tokens = max_tokens;
    request.sampling.seed = id;
    request.arrival = absl::Now();
    return request;
  }
  static std::string Solo(uint64_t id, const std::string& prompt, uint32_t max_tokens) {
    return FakeRank::Solo(ByteTokens(prompt), id, 0, max_tokens);
  }
  std::shared_ptr<CollectingSink> Submit(std::vector<Request> requests) {
    auto sink = std::make_shared<CollectingSink>();
    shell_->Submit(std::move(requests), sink);
    return sink;
  }

  GroupShellOptions options_;
  std::vector<std::unique_ptr<FakeRank>> ranks_;
  uint64_t random_ = 0;
  std::atomic<int> clock_offset_s_ = 0;
  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<bool> readiness_changes_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<GroupShell> shell_;  // ends first: its thread uses all of the above
};

TEST_F(GroupShellTest, ServesWhatTheRanksGenerate) {
  StartReady(2);
  EXPECT_TRUE(shell_->Readiness().ok());
  EXPECT_EQ(shell_->model()->name, "test-model");
  EXPECT_EQ(shell_->model()->max_seq_len, 128u);
  EXPECT_EQ(shell_->model()->numerics_id, "fake-numerics/f16") << "as it is once loaded";
  const auto one = Submit({MakeRequest(1, "a prompt of some length", 20)});
  const auto two = Submit({MakeRequest(2, "b", 5), MakeRequest(3, "b", 7)});
  EXPECT_EQ(one->WaitForEnd(1).reason, FinishReason::kLength);
  EXPECT_EQ(one->text(1), Solo(1, "a prompt of some length", 20));
  two->WaitForEnd(2);
  two->WaitForEnd(3);
  EXPECT_EQ(two->text(2), Solo(2, "b", 5));
  EXPECT_EQ(two->text(3), Solo(3, "b", 7));
  const EngineStatus status = shell_->status();
  EXPECT_EQ(status.num_finished, 3u);
  EXPECT_EQ(status.num_generated_tokens, 32u);
  EXPECT_EQ(status.scheduler.num_running, 0u);
  ASSERT_EQ(status.ranks.size(), 2u);
  EXPECT_EQ(status.ranks[1].state, RankState::kReady);
  EXPECT_GT(status.ranks[1].compute_time, absl::ZeroDuration());
  EXPECT_EQ(ranks_[0]->rendezvous(), ranks_[1]->rendezvous()) << "ranks must meet";
}

TEST_F(GroupShellTest, RanksThatStartLateAreMentionedAfterAWhileAndWarnedOfMuchLater) {
  GroupLog log;
  AddRanks(2);
  ranks_[1]->Kill();
  StartShell();
  EXPECT_FALSE(shell_->WaitUntilReady(absl::Milliseconds(200)).ok());  // many probes, no line
  clock_offset_s_ = 3;
  EXPECT_THAT(
      log.WaitForLines(1),
      ElementsAre(StartsWith("INFO waiting for the worker group: rank 1: does not answer")));
  clock_offset_s_ = 11;
  EXPECT_THAT(log.WaitForLines(2)[1], StartsWith("WARNING the worker group: rank 1: does not"));
  ranks_[1]->Start();
  EXPECT_TRUE(shell_->WaitUntilReady(absl::Seconds(20)).ok());
}

TEST_F(GroupShellTest, TheNextPlanIsSentBeforeTheTokensAreBack) {
  StartReady(2);
  ranks_[1]->HoldReplies();
  const auto sink = Submit({MakeRequest(1, "prompt", 30)});
  ranks_[0]->WaitForPlans(2);
  ranks_[1]->WaitForPlans(2);
  EXPECT_EQ(sink->text(1), "");
  ranks_[1]->ReleaseReplies(1);
  ranks_[1]->WaitForPlans(3);
  ranks_[1]->ReleaseReplies();
  EXPECT_EQ(sink->WaitForEnd(1).num_generated_tokens, 30u);
  EXPECT_EQ(sink->text(1), Solo(1, "prompt", 30));
  EXPECT_EQ(ranks_[1]->num_plans(), 30u) << "an end by length is known ahead";
}

TEST_F(GroupShellTest, OnePlanInFlightGivesTheSameTokens) {
  options_.scheduler.max_plans_in_flight = 1;
  StartReady(1);
  ranks_[0]->HoldReplies();
  const auto sink = Submit({MakeRequest(1, "prompt", 30)});
  ranks_[0]->WaitUntilHolding();
  ranks_[0]->ReleaseReplies(1);
  sink->WaitForTokens(1, 1);
  EXPECT_LE(ranks_[0]->num_plans(), 2u);
  ranks_[0]->ReleaseReplies();
  sink->WaitForEnd(1);
  EXPECT_EQ(sink->text(1), Solo(1, "prompt", 30));
}

TEST_F(GroupShellTest, AStreamOutlivesAKilledRank) {
  StartReady(2);
  ranks_[1]->HoldReplies();
  const auto sink = Submit({MakeRequest(1, "prompt", 30)});
  ranks_[1]->WaitUntilHolding();
  ranks_[1]->ReleaseReplies(3);
  sink->WaitForTokens(1, 3);
  ranks_[1]->WaitUntilHolding();  // a step is under way
  ranks_[1]->Kill();
  WaitForReadinessChanges(2);  // ready, lost
  EXPECT_FALSE(shell_->Readiness().ok());
  EXPECT_TRUE(shell_->Admission().ok()) << "new requests wait";
  const auto meanwhile = Submit({MakeRequest(2, "meanwhile", 4)});
  ranks_[1]->ReleaseReplies();
  ranks_[1]->Start();
  EXPECT_EQ(sink->WaitForEnd(1).reason, FinishReason::kLength);
  EXPECT_EQ(sink->text(1), Solo(1, "prompt", 30));
  meanwhile->WaitForEnd(2);
  EXPECT_EQ(meanwhile->text(2), Solo(2, "meanwhile", 4)) << "what came in between waited";
  EXPECT_TRUE(shell_->Readiness().ok());
  EXPECT_GE(ranks_[0]->num_aborts(), 1u) << "the survivor was unblocked";
  const std::vector<std::string> met = ranks_[0]->rendezvous();
  ASSERT_GE(met.size(), 2u);
  EXPECT_NE(met.front(), met.back()) << "every epoch meets elsewhere";
}

TEST_F(GroupShellTest, ANewProcessGetsAsMuchKvCacheAsTheOldOneChose) {
  StartReady(2);
  for (size_t times = 1; times <= 2; ++times) {
    ranks_[1]->Kill();
    WaitForReadinessChanges(2 * times);
    ranks_[1]->Start();
    WaitForReadinessChanges(2 * times + 1);
    EXPECT_EQ(ranks_[0]->loaded().kv_cache_bytes(), 0u) << "its shard is loaded, and stays";
    EXPECT_EQ(ranks_[1]->loaded().kv_cache_bytes(), FakeRank::kKvCacheBytes);
  }
}

TEST_F(GroupShellTest, ARankThatDivergesIsReplayedWithTheSameTokens) {
  StartReady(2);
  ranks_[0]->HoldReplies();
  const auto sink = Submit({MakeRequest(1, "prompt", 100)});
  ranks_[0]->WaitUntilHolding();
  ranks_[0]->DivergeOnce();
  ranks_[0]->ReleaseReplies();
  EXPECT_EQ(sink->WaitForEnd(1).reason, FinishReason::kLength);
  EXPECT_EQ(sink->text(1), Solo(1, "prompt", 100));
  EXPECT_EQ(shell_->status().epoch, 2u);
}

TEST_F(GroupShellTest, ARankWhoseLoopHangsIsReportedAndReplacedInMidStream) {
  options_.group.warmup_step_timeout = absl::Milliseconds(100);
  options_.group.min_step_timeout = absl::Milliseconds(100);
  std::promise<std::pair<uint32_t, uint32_t>> hung;
  options_.on_hung_rank = [&](uint32_t rank, uint32_t pid) { hung.set_value({rank, pid}); };
  StartReady(2);
  ranks_[1]->HoldReplies();
  ranks_[1]->HangLoop();
  const auto sink = Submit({MakeRequest(1, "prompt", 100)});
  const uint32_t pid = shell_->status().ranks[1].pid;
  EXPECT_EQ(hung.get_future().get(), std::make_pair(1u, pid));
  ranks_[1]->Kill();
  ranks_[1]->ReleaseReplies();
  ranks_[1]->Start();
  EXPECT_EQ(sink->WaitForEnd(1).reason, FinishReason::kLength);
  EXPECT_EQ(sink->text(1), Solo(1, "prompt", 100));
}

TEST_F(GroupShellTest, AGroupThatDoesNotComeBackEndsItsRequestsUnavailable) {
  options_.group.recovery_timeout = absl::Milliseconds(100);
  StartReady(1);
  ranks_[0]->HoldReplies();
  const auto sink = Submit({MakeRequest(1, "p", 10)});
  ranks_[0]->WaitUntilHolding();
  ranks_[0]->Kill();
  const Outcome outcome = sink->WaitForEnd(1);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("did not come back within 100ms"));
  const auto refused = Submit({MakeRequest(2, "p", 10)});
  EXPECT_EQ(refused->WaitForAdmission().code(), absl::StatusCode::kUnavailable);
  ranks_[0]->ReleaseReplies();
  ranks_[0]->Start();  // late, but welcome
  WaitForReadinessChanges(3);
  const auto served = Submit({MakeRequest(3, "p", 10)});
  served->WaitForEnd(3);
  EXPECT_EQ(served->text(3), Solo(3, "p", 10));
}

TEST_F(GroupShellTest, RanksOfAnotherModelAreRefusedByName) {
  AddRanks(1);
  AddRanks(1, {.fingerprint = 43});
  StartShell();
  const absl::Status status = shell_->WaitUntilReady(absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 has model fingerprint"));
}

TEST_F(GroupShellTest, ARankThatCannotHoldItsShardStopsTheStart) {
  AddRanks(1, {.load_status = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "12 heads, tp 8")});
  StartShell();
  const absl::Status status = shell_->WaitUntilReady(absl::Seconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("12 heads, tp 8"));
}

TEST_F(GroupShellTest, TheStartTimeoutNamesTheRankThatIsMissing) {
  AddRanks(2);
  ranks_[1]->Kill();
  StartShell();
  const absl::Status status = shell_->WaitUntilReady(absl::Milliseconds(200));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  const auto refused = Submit({MakeRequest(1, "p", 1)});
  EXPECT_EQ(refused->WaitForAdmission().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GroupShellTest, AbandonWaitEndsTheStart) {
  AddRanks(1);
  ranks_[0]->Kill();
  StartShell();
  shell_->AbandonWait();
  EXPECT_EQ(shell_->WaitUntilReady(absl::Seconds(20)).code(), absl::StatusCode::kCancelled);
}

// A wait that returned at once, again and again, would keep the lock from whoever ends it.
TEST_F(GroupShellTest, AbandonWaitEndsAStartWithoutATimeout) {
  AddRanks(1);
  ranks_[0]->Kill();
  StartShell();
  for (const absl::Duration timeout : {absl::InfiniteDuration(), absl::Hours(24 * 365 * 280)}) {
    std::thread abandon([&] {
      while (shell_->Readiness().message().find("rank 0") == std::string::npos) {
        std::this_thread::yield();
      }
      shell_->AbandonWait();
    });
    EXPECT_EQ(shell_->WaitUntilReady(timeout).code(), absl::StatusCode::kCancelled);
    abandon.join();
  }
}

TEST_F(GroupShellTest, AFullQueueRefusesARequestWithAllItsChoices) {
  options_.scheduler.max_queued_requests = 2;  // beside the 4 that run
  StartReady(1);
  ranks_[0]->HoldReplies();
  const auto running =
      Submit({MakeRequest(1, "p", 9), MakeRequest(2, "p", 9), MakeRequest(3, "p", 9),
              MakeRequest(4, "p", 9), MakeRequest(5, "p", 9)});
  EXPECT_TRUE(running->WaitForAdmission().ok());
  const auto refused = Submit({MakeRequest(6, "p", 9), MakeRequest(7, "p", 9)});
  EXPECT_EQ(refused->WaitForAdmission().code(), absl::StatusCode::kResourceExhausted);
  const auto fits = Submit({MakeRequest(8, "p", 9)});
  EXPECT_TRUE(fits->WaitForAdmission().ok()) << "nothing of the refused one stayed";
  ranks_[0]->ReleaseReplies();
  fits->WaitForEnd(8);
  for (uint64_t id = 1; id <= 5; ++id) running->WaitForEnd(id);
  EXPECT_EQ(refused->num_ends(), 0u);
  EXPECT_EQ(shell_->status().num_rejected, 1u);
}

TEST_F(GroupShellTest, CancelAndFinishFreeWhatASequenceHolds) {
  StartReady(1);
  ranks_[0]->HoldReplies();
  const auto sink = Submit({MakeRequest(1, "p", 127), MakeRequest(2, "p", 127)});
  ranks_[0]->WaitUntilHolding();
  ranks_[0]->ReleaseReplies(1);
  sink->WaitForTokens(1, 1);
  sink->WaitForTokens(2, 1);
  shell_->Finish(2);
  shell_->Cancel(1, "no more");
  const Outcome outcome = sink->WaitForEnd(1);
  EXPECT_EQ(outcome.reason, FinishReason::kCancelled);
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("no more"));
  // The plan that was under way has been committed once another request is through.
  ranks_[0]->ReleaseReplies();
  const auto next = Submit({MakeRequest(3, "q", 1)});
  next->WaitForEnd(3);
  EXPECT_EQ(sink->num_ends(), 1u) << "a finished sequence has no event of its own";
  const SchedulerStats stats = shell_->status().scheduler;
  EXPECT_EQ(stats.num_running, 0u);
  EXPECT_EQ(stats.num_held_blocks, 0u);
  EXPECT_EQ(shell_->status().num_finished, 3u);
}

TEST_F(GroupShellTest, ADeadlineEndsARequestThatTheRanksKeepWaiting) {
  StartReady(1);
  ranks_[0]->HoldReplies();
  Request request = MakeRequest(1, "p", 9);
  request.deadline = absl::Now() + absl::Milliseconds(50);
  const auto sink = Submit({request});
  EXPECT_EQ(sink->WaitForEnd(1).reason, FinishReason::kDeadline);
  ranks_[0]->ReleaseReplies();
}

TEST_F(GroupShellTest, StopEndsWhatRunsExactlyOnce) {
  StartReady(2);
  ranks_[0]->HoldReplies();
  const auto sink = Submit({MakeRequest(1, "p", 100), MakeRequest(2, "q", 100)});
  ASSERT_TRUE(sink->WaitForAdmission().ok());
  shell_->Stop();
  EXPECT_EQ(sink->num_ends(), 2u);
  const auto late = Submit({MakeRequest(3, "p", 1)});
  EXPECT_EQ(late->WaitForAdmission().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GroupShellTest, SendsNothingWhileIdle) {
  StartReady(1);
  const auto sink = Submit({MakeRequest(1, "p", 3)});
  sink->WaitForEnd(1);
  const auto next = Submit({MakeRequest(2, "p", 3)});
  next->WaitForEnd(2);
  // One plan a token; the second request's first plan ends the first's slot.
  EXPECT_EQ(ranks_[0]->num_plans(), 6u);
}

}  // namespace
}  // namespace shoal::router
