// Commands about tokens and the cluster, and what holds for all that call a router.

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "cli/command_bench.h"
#include "cli/command_cluster.h"
#include "cli/command_tokens.h"
#include "cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/command_fixture.h"

namespace shoal::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST_F(CommandTest, TokenizePrintsIds) {
  TokenizeFlags flags;
  flags.text = "-";
  flags.no_special = true;
  std::istringstream in("text");
  EXPECT_EQ(RunTokenize(session_, flags, &in), kExitOk);
  EXPECT_EQ(out(), "5 6\n");
  EXPECT_EQ(router_.tokenize_request().text(), "text");
  EXPECT_TRUE(router_.tokenize_request().has_add_special_tokens());
  EXPECT_FALSE(router_.tokenize_request().add_special_tokens());
}

TEST_F(CommandTest, TokenizeShowsTheBytesToPeople) {
  session_.out_is_terminal = true;
  TokenizeFlags flags;
  EXPECT_EQ(RunTokenize(session_, flags, nullptr), kExitOk);
  EXPECT_EQ(out(), "ID  BYTES\n5   \"a?\"\n6   \"\\xff\"\n");
}

TEST_F(CommandTest, DetokenizeTakesWhatTokenizePrints) {
  DetokenizeFlags flags;
  flags.ids = {"5", "6,7"};
  EXPECT_EQ(RunDetokenize(session_, flags, nullptr), kExitOk);
  EXPECT_THAT(router_.detokenize_request().ids(), ElementsAre(5, 6, 7));
  EXPECT_EQ(out(), "some text\n");
  std::istringstream in("8 9\n");
  flags.ids = {"-"};
  EXPECT_EQ(RunDetokenize(session_, flags, &in), kExitOk);
  EXPECT_THAT(router_.detokenize_request().ids(), ElementsAre(8, 9));
}

TEST_F(CommandTest, StatusShowsTheClusterAndWorkersInRankOrder) {
  EXPECT_EQ(RunStatus(session_), kExitOk);
  EXPECT_THAT(out(), HasSubstr("of 4242"));
  EXPECT_THAT(out(), HasSubstr("loading 25%"));
  EXPECT_LT(out().find("rank-0"), out().find("rank-1"));
}

TEST_F(CommandTest, StatusTellsAReasonBelowTheTable) {
  v1::Worker worker;
  worker.set_worker_id("rank-0");
  worker.set_state(v1::WORKER_STATE_FAILED);
  worker.set_state_reason(std::string(190, 'x'));
  router_.SetWorkers({worker});
  EXPECT_EQ(RunStatus(session_), kExitOk);
  EXPECT_THAT(out(), HasSubstr("\nrank-0  0     failed  0 "));
  EXPECT_THAT(out(), HasSubstr("\n\nrank 0: " + std::string(190, 'x') + "\n"));
}

TEST_F(CommandTest, StatusAsJsonHasBoth) {
  UseJson();
  EXPECT_EQ(RunStatus(session_), kExitOk);
  EXPECT_EQ(json()["cluster"]["ready"], true);
  EXPECT_EQ(json()["workers"][1]["workerId"], "rank-1");
  EXPECT_THAT(out(), StartsWith("{\n \"cluster\": {\n  \"version\""));
  EXPECT_THAT(out(), HasSubstr("\n },\n \"workers\": [\n  {\n   \"workerId\""));
}

TEST_F(CommandTest, PsShowsTheOldestFirst) {
  EXPECT_EQ(RunPs(session_, absl::FromUnixSeconds(3700)), kExitOk);
  EXPECT_LT(out().find("req-100"), out().find("req-200"));
  EXPECT_THAT(out(), HasSubstr("req-100  running  1h"));
  EXPECT_THAT(out(), HasSubstr("req-200  queued   58m20s"));
}

TEST_F(CommandTest, CancelNamesTheRequestAndTheReason) {
  EXPECT_EQ(RunCancel(session_, "r1", "why"), kExitOk);
  EXPECT_EQ(router_.cancel_request().request_id(), "r1");
  EXPECT_EQ(router_.cancel_request().reason(), "why");
  router_.SetStatus({grpc::StatusCode::NOT_FOUND, "no such request"});
  EXPECT_EQ(RunCancel(session_, "r1", "why"), kExitRpcBase + 5);
}

TEST_F(CommandTest, HealthExitsByTheStatus) {
  router_.SetServing("readiness", true);
  EXPECT_EQ(RunHealth(session_, "readiness"), kExitOk);
  EXPECT_EQ(RunHealth(session_, ""), kExitOk);
  router_.SetServing("readiness", false);
  EXPECT_EQ(RunHealth(session_, "readiness"), kExitUnhealthy);
  EXPECT_THAT(out(), HasSubstr("NOT_SERVING"));
  EXPECT_EQ(RunHealth(session_, "nobody"), kExitRpcBase + 5);
}

using Command = std::function<int(const Session&)>;

std::vector<Command> Commands() {
  return {
      [](const Session& s) { return RunGenerate(s, Prompt("p"), nullptr); },
      [](const Session& s) { return RunTokenize(s, TokenizeFlags(), nullptr); },
      [](const Session& s) { return RunDetokenize(s, DetokenizeFlags(), nullptr); },
      [](const Session& s) { return RunModels(s); },
      [](const Session& s) { return RunStatus(s); },
      [](const Session& s) { return RunPs(s, absl::Now()); },
      [](const Session& s) { return RunCancel(s, "r", "why"); },
      [](const Session& s) { return RunBench(s, BenchFlags()); },
  };
}

TEST_F(CommandTest, AnErrorIsOnStderrAndStdoutStaysJson) {
  UseJson();
  router_.SetStatus({grpc::StatusCode::RESOURCE_EXHAUSTED, "the \"queue\" is full\n"});
  for (const Command& command : Commands()) {
    out_.str("");
    err_.str("");
    EXPECT_EQ(command(session_), kExitRpcBase + 8);
    EXPECT_THAT(err(), StartsWith("error: RESOURCE_EXHAUSTED: the \"queue\" is full"));
    EXPECT_EQ(json()["error"]["code"], "RESOURCE_EXHAUSTED");
  }
}

TEST_F(CommandTest, EveryCommandGivesJson) {
  UseJson();
  for (const Command& command : Commands()) {
    out_.str("");
    EXPECT_EQ(command(session_), kExitOk) << err();
    EXPECT_TRUE(json().is_object());
  }
}

TEST_F(CommandTest, ADeadRouterIsExitThreeWithoutWaiting) {
  UseJson();
  session_.server = session_.admin = "127.0.0.1:1";
  const absl::Time start = absl::Now();
  for (const Command& command : Commands()) {
    out_.str("");
    EXPECT_EQ(command(session_), kExitCannotConnect);
    EXPECT_EQ(json()["error"]["code"], "UNAVAILABLE");
  }
  EXPECT_EQ(Chat(ChatFlags(), "hello\n"), kExitCannotConnect);
  EXPECT_LT(absl::Now() - start, absl::Seconds(4)) << "what one connection may take";
}

}  // namespace
}  // namespace shoal::cli
