#include "cli/command_bench.h"

#include <string>

#include "cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/command_fixture.h"

namespace shoal::cli {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

TEST_F(CommandTest, BenchSendsExactLengthsAndCountsWhatComesBack) {
  UseJson();
  router_.SetStream({"a", "b", "c"});
  BenchFlags flags;
  flags.clients = 2;
  flags.output_tokens = 3;
  flags.load.num_requests = 5;
  flags.load.prompt_tokens = 10;
  EXPECT_EQ(RunBench(session_, flags), kExitOk);
  EXPECT_THAT(router_.generate_requests(), SizeIs(5 + 2)) << "a warm-up request a client";
  EXPECT_THAT(request().token_ids().ids(), SizeIs(10));
  EXPECT_EQ(request().stop().max_tokens(), 3u);
  EXPECT_TRUE(request().stop().ignore_eos());
  EXPECT_EQ(json()["succeeded"], 5);
  EXPECT_EQ(json()["output_tokens"], 15);
  EXPECT_EQ(json()["prompt_tokens"], 15) << "as the router says, 3 each";
}

TEST_F(CommandTest, BenchWarnsOfALoadThatTheCacheKnows) {
  router_.SetStream({"a"});
  router_.SetEnd(v1::FINISH_REASON_LENGTH, MakeUsage(10, 8, 1), {});
  BenchFlags flags;
  flags.load.num_requests = 2;
  flags.load.seed = 77;
  EXPECT_EQ(RunBench(session_, flags), kExitOk);
  EXPECT_THAT(err(),
              HasSubstr("warning: 16 of 20 prompt tokens were in the prefix cache: this load "
                        "(--seed 77) ran here before"));
  EXPECT_THAT(out(), HasSubstr("seed"));
  err_.str("");
  flags.load.shared_prefix_tokens = 8;  // then hits are what is measured
  EXPECT_EQ(RunBench(session_, flags), kExitOk);
  EXPECT_EQ(err(), "");
}

TEST_F(CommandTest, BenchAtARateSendsAllRequests) {
  UseJson();
  router_.SetStream({"a"});
  BenchFlags flags;
  flags.rate = 2000;
  flags.warmup = 0;
  flags.load.num_requests = 20;
  EXPECT_EQ(RunBench(session_, flags), kExitOk);
  EXPECT_THAT(router_.generate_requests(), SizeIs(20));
  EXPECT_EQ(json()["succeeded"], 20);
}

TEST_F(CommandTest, BenchCountsErrorsByCode) {
  UseJson();
  router_.SetStream({"a"}, kUnavailable);
  BenchFlags flags;
  flags.load.num_requests = 3;
  EXPECT_EQ(RunBench(session_, flags), kExitRuntime);
  EXPECT_EQ(json()["errors"]["UNAVAILABLE"], 3);
  EXPECT_THAT(err(), HasSubstr("error: 3 of 3 requests failed\n"));
}

TEST_F(CommandTest, BenchRefusesWhatTheContextCannotHold) {
  BenchFlags flags;
  flags.load.prompt_tokens = 200;
  flags.output_tokens = 57;
  EXPECT_EQ(RunBench(session_, flags), kExitUsage);
  EXPECT_THAT(err(), HasSubstr("are 257 together, but the context has 256"));
}

}  // namespace
}  // namespace shoal::cli
