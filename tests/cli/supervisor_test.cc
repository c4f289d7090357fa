#include "cli/supervisor.h"

#include <signal.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using Kind = Supervisor::Action::Kind;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr int kRouter = Supervisor::kRouter;
constexpr ExitState kKilled = {true, SIGKILL};
constexpr ExitState kCrashed = {true, SIGSEGV};

ExitState Code(int code) { return {false, code}; }

// Actions as words: "spawn 0", "signal router 15", "say ...", "quit 1".
std::vector<std::string> Words(const Supervisor::Actions& actions) {
  std::vector<std::string> words;
  for (const Supervisor::Action& action : actions) {
    const std::string who = action.process == kRouter ? "router" : std::to_string(action.process);
    switch (action.kind) {
      case Kind::kSpawn:
        words.push_back("spawn " + who);
        break;
      case Kind::kSignal:
        words.push_back("signal " + who + " " + std::to_string(action.value));
        break;
      case Kind::kSay:
        words.push_back("say " + action.text);
        break;
      case Kind::kQuit:
        words.push_back("quit " + std::to_string(action.value));
        break;
    }
  }
  return words;
}

class SupervisorTest : public testing::Test {
 protected:
  void StartReady() {
    supervisor_.Start(now_);
    supervisor_.OnReady();
  }
  std::vector<std::string> Exit(int process, ExitState state) {
    return Words(supervisor_.OnExit(now_, process, state));
  }
  std::vector<std::string> Stop(int signal) {
    return Words(supervisor_.OnStopSignal(now_, signal));
  }
  std::vector<std::string> Advance(absl::Duration duration) {
    now_ += duration;
    return Words(supervisor_.OnTimer(now_));
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  Supervisor supervisor_{2, absl::Seconds(30)};
};

TEST_F(SupervisorTest, StartsTheRanksAndTheRouter) {
  EXPECT_THAT(Words(supervisor_.Start(now_)), ElementsAre("spawn 0", "spawn 1", "spawn router"));
  EXPECT_EQ(supervisor_.next_timer(), absl::InfiniteFuture());
}

TEST_F(SupervisorTest, RestartsADeadRankAfterTheBackoff) {
  StartReady();
  EXPECT_THAT(Exit(1, kKilled),
              ElementsAre("say rank 1 was killed by signal 9: restarting in 100ms"));
  EXPECT_EQ(supervisor_.next_timer(), now_ + absl::Milliseconds(100));
  EXPECT_THAT(Advance(absl::Milliseconds(99)), IsEmpty());
  EXPECT_THAT(Advance(absl::Milliseconds(1)), ElementsAre("spawn 1"));
  EXPECT_EQ(supervisor_.next_timer(), absl::InfiniteFuture());
}

TEST_F(SupervisorTest, RestartsARankThatExitsByItselfOnceTheClusterServed) {
  StartReady();
  EXPECT_THAT(Exit(0, Code(1)), ElementsAre("say rank 0 exited with code 1: restarting in 100ms"));
}

TEST_F(SupervisorTest, KillsARankThatHangsAndNotTheProcessAfterIt) {
  StartReady();
  EXPECT_THAT(Words(supervisor_.OnHung(1, 40, 41)), IsEmpty());
  EXPECT_THAT(Words(supervisor_.OnHung(2, 41, 41)), IsEmpty()) << "no such rank";
  EXPECT_THAT(Words(supervisor_.OnHung(1, 41, 41)),
              ElementsAre("say rank 1 hangs: killing process 41", "signal 1 9"));
  Exit(1, kKilled);
  EXPECT_THAT(Words(supervisor_.OnHung(1, 41, 0)), IsEmpty());
  EXPECT_THAT(Advance(absl::Milliseconds(100)), ElementsAre("spawn 1"));
}

TEST_F(SupervisorTest, BacksOffFurtherForARankThatKeepsDying) {
  StartReady();
  Exit(1, kKilled);
  Advance(absl::Milliseconds(100));
  EXPECT_THAT(Exit(1, kCrashed),
              ElementsAre("say rank 1 was killed by signal 11: restarting in 200ms"));
}

TEST_F(SupervisorTest, EndsWhenARankFailsBeforeTheClusterWasReady) {
  supervisor_.Start(now_);
  EXPECT_THAT(Exit(0, Code(1)), ElementsAre("signal router 15", "signal 1 15"));
  EXPECT_THAT(Exit(kRouter, Code(0)), IsEmpty());
  EXPECT_THAT(
      Exit(1, Code(0)),
      ElementsAre("say error: rank 0 exited with code 1 before the cluster was ready", "quit 1"));
}

TEST_F(SupervisorTest, EndsWhenARankCrashesBeforeTheClusterWasReady) {
  supervisor_.Start(now_);
  EXPECT_THAT(Exit(1, kCrashed), ElementsAre("signal router 15", "signal 0 15"));
}

TEST_F(SupervisorTest, RestartsARankThatSomebodyKillsWhileItLoads) {
  supervisor_.Start(now_);
  Exit(1, kKilled);
  EXPECT_THAT(Advance(absl::Milliseconds(100)), ElementsAre("spawn 1"));
}

TEST_F(SupervisorTest, StopDrainsTheRouterBeforeTheRanksEnd) {
  StartReady();
  EXPECT_THAT(Stop(SIGTERM), ElementsAre("signal router 15"));
  EXPECT_THAT(Exit(kRouter, Code(0)), ElementsAre("signal 0 15", "signal 1 15"));
  EXPECT_THAT(Exit(0, Code(0)), IsEmpty());
  EXPECT_THAT(Exit(1, Code(0)), ElementsAre("quit 0"));
}

TEST_F(SupervisorTest, ARankThatDiesWhileTheRouterDrainsIsRestarted) {
  StartReady();
  Stop(SIGTERM);
  Exit(0, kKilled);
  EXPECT_THAT(Advance(absl::Milliseconds(100)), ElementsAre("spawn 0"));
}

TEST_F(SupervisorTest, TheExitCodeOfTheDrainIsTheRouters) {
  StartReady();
  Stop(SIGTERM);
  Exit(kRouter, Code(7));
  Exit(0, Code(0));
  EXPECT_THAT(Exit(1, Code(0)), ElementsAre("say error: the router exited with code 7", "quit 7"));
}

TEST_F(SupervisorTest, ASecondStopKillsEverything) {
  StartReady();
  Stop(SIGINT);
  EXPECT_THAT(Stop(SIGINT), ElementsAre("signal router 9", "signal 0 9", "signal 1 9"));
  Exit(0, kKilled);
  Exit(1, kKilled);
  EXPECT_THAT(Exit(kRouter, kKilled), ElementsAre("quit 130"));
}

TEST_F(SupervisorTest, ARouterThatHangsInItsDrainIsKilled) {
  StartReady();
  Stop(SIGTERM);
  EXPECT_EQ(supervisor_.next_timer(), now_ + absl::Seconds(35));
  EXPECT_THAT(Advance(absl::Seconds(34)), IsEmpty());
  EXPECT_THAT(Advance(absl::Seconds(1)),
              ElementsAre("signal router 9", "signal 0 9", "signal 1 9"));
  EXPECT_THAT(Exit(kRouter, kKilled), IsEmpty());
  EXPECT_THAT(Exit(0, kKilled), IsEmpty());
  EXPECT_THAT(Exit(1, kKilled),
              ElementsAre("say error: the router hung: it did not end after its drain timeout and "
                          "was killed",
                          "quit 1"));
}

TEST_F(SupervisorTest, NothingIsStartedWhenEverythingEnds) {
  StartReady();
  Exit(0, kKilled);
  Exit(kRouter, kKilled);
  EXPECT_THAT(Advance(absl::Seconds(1)), IsEmpty());
}

TEST_F(SupervisorTest, TheRoutersDeathEndsServe) {
  StartReady();
  EXPECT_THAT(Exit(kRouter, kKilled), ElementsAre("signal 0 15", "signal 1 15"));
  Exit(0, Code(0));
  EXPECT_THAT(Exit(1, Code(0)),
              ElementsAre("say error: the router was killed by signal 9", "quit 137"));
}

TEST_F(SupervisorTest, ARouterThatExitsUnaskedIsAFailureEvenWithCodeZero) {
  StartReady();
  Exit(kRouter, Code(0));
  Exit(0, Code(0));
  EXPECT_THAT(Exit(1, Code(0)), ElementsAre("say error: the router exited with code 0", "quit 1"));
}

TEST_F(SupervisorTest, KillsThoseThatOutliveTheirGrace) {
  StartReady();
  Stop(SIGTERM);
  Exit(kRouter, Code(0));
  Exit(0, Code(0));
  EXPECT_EQ(supervisor_.next_timer(), now_ + absl::Seconds(5));
  EXPECT_THAT(Advance(absl::Seconds(5)), ElementsAre("signal 1 9"));
  EXPECT_EQ(supervisor_.next_timer(), absl::InfiniteFuture());
  EXPECT_THAT(Exit(1, kKilled), ElementsAre("quit 0"));
}

TEST(RestartBackoffTest, DoublesFrom100MsTo5S) {
  RestartBackoff backoff;
  for (const int want_ms : {100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
    EXPECT_EQ(backoff.OnDeath(absl::ZeroDuration()), absl::Milliseconds(want_ms));
  }
}

TEST(RestartBackoffTest, WhoLivedLongerThanThatIsStartedAtOnce) {
  RestartBackoff backoff;
  EXPECT_EQ(backoff.OnDeath(absl::Milliseconds(30)), absl::Milliseconds(70));
  EXPECT_EQ(backoff.OnDeath(absl::Milliseconds(250)), absl::ZeroDuration());
  EXPECT_EQ(backoff.OnDeath(absl::Milliseconds(250)), absl::Milliseconds(150));
}

TEST(RestartBackoffTest, StartsAgainAfterALifeOf30S) {
  RestartBackoff backoff;
  backoff.OnDeath(absl::Seconds(1));
  backoff.OnDeath(absl::Seconds(29));
  EXPECT_EQ(backoff.OnDeath(absl::Seconds(30)), absl::ZeroDuration());
  EXPECT_EQ(backoff.OnDeath(absl::ZeroDuration()), absl::Milliseconds(200)) << "doubled once";
}

}  // namespace
}  // namespace shoal::cli
