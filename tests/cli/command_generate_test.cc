#include "cli/command_generate.h"

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "cli/command_cluster.h"
#include "cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/command_fixture.h"

namespace shoal::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

TEST_F(CommandTest, GenerateStreamsTheTextAndEndsItsLine) {
  router_.SetStream({"Once", " upon", " a time"});
  EXPECT_EQ(Generate(Prompt("p")), kExitOk);
  EXPECT_EQ(out(), "Once upon a time\n");
  EXPECT_EQ(err(), "");
  EXPECT_EQ(request().prompt(), "p");
}

TEST_F(CommandTest, GenerateIsGreedyUnlessTold) {
  Generate(Prompt("p"));
  EXPECT_TRUE(request().sampling().has_temperature());
  EXPECT_EQ(request().sampling().temperature(), 0);
  EXPECT_EQ(request().stop().max_tokens(), 256u) << "a greedy model may repeat itself for ever";
  EXPECT_FALSE(request().has_top_logprobs());
}

TEST_F(CommandTest, AFlagOfSamplingAloneTurnsSamplingOn) {
  std::vector<GenerateFlags> all(5, Prompt("p"));
  all[0].sampling.top_p = 0.5f;
  all[1].sampling.top_k = 3;
  all[2].sampling.min_p = 0.1f;
  all[3].sampling.seed = 1;
  all[4].n = 2;
  for (const GenerateFlags& flags : all) {
    EXPECT_EQ(Generate(flags), kExitOk);
    EXPECT_EQ(request().sampling().temperature(), 1);
  }
}

TEST_F(CommandTest, AFlagThatCouldHaveNoEffectIsRefused) {
  GenerateFlags greedy = Prompt("p");
  greedy.sampling.temperature = 0;
  greedy.sampling.top_p = 0.5f;
  EXPECT_EQ(Generate(greedy), kExitUsage);
  GenerateFlags system = Prompt("p");
  system.system = "s";
  EXPECT_EQ(Generate(system), kExitUsage);
  GenerateFlags ids = Prompt("1");
  ids.chat = ids.prompt_ids = true;
  EXPECT_EQ(Generate(ids), kExitUsage);
  GenerateFlags bias = Prompt("p");
  bias.sampling.logit_bias = {"5"};
  EXPECT_EQ(Generate(bias), kExitUsage);
  EXPECT_EQ(Generate(GenerateFlags()), kExitUsage) << "no words, and nothing on stdin";
  EXPECT_THAT(router_.generate_requests(), SizeIs(0));
}

TEST_F(CommandTest, EveryFlagReachesTheRequest) {
  GenerateFlags flags = Prompt("p");
  flags.sampling.model = "m";
  flags.sampling.max_tokens = 17;
  flags.sampling.min_tokens = 3;
  flags.sampling.temperature = 0.5f;
  flags.sampling.top_p = 0.25f;
  flags.sampling.top_k = -1;
  flags.sampling.min_p = 0.125f;
  flags.sampling.repetition_penalty = 1.5f;
  flags.sampling.presence_penalty = 0.75f;
  flags.sampling.frequency_penalty = -1;
  flags.sampling.logit_bias = {"5:-100", "7:2.5"};
  flags.sampling.seed = ~uint64_t{0};
  flags.sampling.stop = {"a", "\\n\\t\\\\n\\q"};
  flags.sampling.priority = "high";
  flags.sampling.cache_salt = "salt";
  flags.echo = true;
  flags.sampling.ignore_eos = true;
  flags.logprobs = 0;
  flags.ids = true;
  flags.request_id = "r";
  EXPECT_EQ(Generate(flags), kExitOk);
  const v1::GenerateRequest r = request();
  EXPECT_EQ(r.model(), "m");
  EXPECT_TRUE(r.stop().has_max_tokens());
  EXPECT_EQ(r.stop().max_tokens(), 17u);
  EXPECT_EQ(r.stop().min_tokens(), 3u);
  EXPECT_EQ(r.sampling().temperature(), 0.5f);
  EXPECT_EQ(r.sampling().top_p(), 0.25f);
  EXPECT_EQ(r.sampling().top_k(), -1);
  EXPECT_EQ(r.sampling().min_p(), 0.125f);
  EXPECT_EQ(r.sampling().repetition_penalty(), 1.5f);
  EXPECT_EQ(r.sampling().seed(), ~uint64_t{0});
  EXPECT_EQ(r.sampling().presence_penalty(), 0.75f);
  EXPECT_EQ(r.sampling().frequency_penalty(), -1);
  EXPECT_EQ(r.sampling().logit_bias().at(5), -100);
  EXPECT_EQ(r.sampling().logit_bias().at(7), 2.5f);
  EXPECT_EQ(r.priority(), v1::PRIORITY_HIGH);
  EXPECT_EQ(r.cache_salt(), "salt");
  EXPECT_TRUE(r.echo());
  EXPECT_THAT(r.stop().stop_strings(), ElementsAre("a", "\n\t\\n\\q"));
  EXPECT_TRUE(r.stop().ignore_eos());
  EXPECT_TRUE(r.has_top_logprobs());
  EXPECT_TRUE(r.return_token_ids());
  EXPECT_EQ(r.request_id(), "r");
}

TEST_F(CommandTest, ZeroMaxTokensIsToTheEndOfTheContext) {
  GenerateFlags flags = Prompt("p");
  flags.sampling.max_tokens = 0;
  EXPECT_EQ(Generate(flags), kExitOk);
  EXPECT_FALSE(request().stop().has_max_tokens());
}

TEST_F(CommandTest, WordsAreJoinedAndNoneReadStdin) {
  GenerateFlags flags;
  flags.words = {"hello", "world"};
  EXPECT_EQ(Generate(flags), kExitOk);
  EXPECT_EQ(request().prompt(), "hello world");
  EXPECT_EQ(Generate(GenerateFlags(), "piped\n"), kExitOk);
  EXPECT_EQ(request().prompt(), "piped\n");
}

TEST_F(CommandTest, ACutAnswerIsMarkedOnStderr) {
  router_.SetStream({"a", "b"});
  GenerateFlags flags = Prompt("p");
  flags.sampling.max_tokens = 2;
  router_.SetEnd(v1::FINISH_REASON_LENGTH, MakeUsage(3, 0, 2), {});
  EXPECT_EQ(Generate(flags), kExitOk);
  EXPECT_EQ(out(), "ab\n");
  EXPECT_EQ(err(), "(stopped: --max-tokens 2)\n");
  err_.str("");
  flags.sampling.max_tokens = 9;
  EXPECT_EQ(Generate(flags), kExitOk);
  EXPECT_EQ(err(), "(stopped: the context is full)\n");
  err_.str("");
  router_.SetEnd(v1::FINISH_REASON_STOP_TOKEN, MakeUsage(3, 0, 2), {});
  EXPECT_EQ(Generate(flags), kExitOk);
  EXPECT_EQ(err(), "");
}

TEST_F(CommandTest, StatsAreALineOnStderr) {
  v1::Timings timings;
  timings.mutable_time_to_first_token()->set_nanos(250'000'000);
  timings.mutable_decode()->set_seconds(2);
  router_.SetStream({"a"});
  router_.SetEnd(v1::FINISH_REASON_STOP_TOKEN, MakeUsage(12, 8, 41), timings);
  GenerateFlags flags = Prompt("p");
  flags.sampling.stats = true;
  EXPECT_EQ(Generate(flags), kExitOk);
  EXPECT_EQ(err(),
            "12 prompt tokens (8 cached), 41 output tokens, 0.250 s to the first, then 20.0 "
            "tokens/s\n");
}

TEST_F(CommandTest, AnErrorBeforeAnyTextLeavesStdoutEmpty) {
  router_.SetStream({}, kUnavailable);
  EXPECT_EQ(Generate(Prompt("p")), kExitRpcBase + 14);
  EXPECT_EQ(Chat(ChatFlags(), "one\n"), kExitRpcBase + 14);
  EXPECT_EQ(out(), "");
}

TEST_F(CommandTest, WhatGrpcSaysIsSaidInWords) {
  router_.SetStatus({grpc::StatusCode::UNIMPLEMENTED, ""});
  EXPECT_EQ(RunModels(session_), kExitRpcBase + 12);
  EXPECT_THAT(err(), HasSubstr("does not know this call: --server is"));
  err_.str("");
  router_.SetStatus({grpc::StatusCode::UNAVAILABLE, "Socket closed"});
  EXPECT_EQ(RunModels(session_), kExitRpcBase + 14);
  EXPECT_THAT(err(), HasSubstr("error: UNAVAILABLE: the connection to " + router_.address() +
                               " broke: the router stopped (Socket closed)"));
}

TEST_F(CommandTest, AnUnknownHostIsNamed) {
  session_.server = "nobody.invalid:1";
  EXPECT_EQ(RunModels(session_), kExitCannotConnect);
  EXPECT_THAT(err(), HasSubstr("nobody.invalid"));
}

TEST_F(CommandTest, ADashReadsThePromptFromStdin) {
  EXPECT_EQ(Generate(Prompt("-"), "line 1\nline 2\n"), kExitOk);
  EXPECT_EQ(request().prompt(), "line 1\nline 2\n");
}

TEST_F(CommandTest, ChatMakesThePromptAUsersMessage) {
  GenerateFlags flags = Prompt("hello");
  flags.chat = true;
  flags.system = "be brief";
  EXPECT_EQ(Generate(flags), kExitOk);
  ASSERT_THAT(request().chat().messages(), SizeIs(2));
  EXPECT_EQ(request().chat().messages(0).role(), "system");
  EXPECT_EQ(request().chat().messages(1).role(), "user");
  EXPECT_EQ(request().chat().messages(1).content(), "hello");
}

TEST_F(CommandTest, PromptIdsAreSentAsTheyAre) {
  GenerateFlags flags = Prompt("1, 2 3");
  flags.prompt_ids = true;
  EXPECT_EQ(Generate(flags), kExitOk);
  EXPECT_THAT(request().token_ids().ids(), ElementsAre(1, 2, 3));
  flags.words = {"1,x"};
  EXPECT_EQ(Generate(flags), kExitUsage);
  EXPECT_THAT(err(), HasSubstr("\"x\" is no token id"));
}

TEST_F(CommandTest, IdsReplaceTheText) {
  router_.SetStream({"a", "b"});
  GenerateFlags flags = Prompt("p");
  flags.ids = true;
  EXPECT_EQ(Generate(flags), kExitOk);
  EXPECT_EQ(out(), "100 101\n");
}

TEST_F(CommandTest, LogprobsFollowTheText) {
  router_.SetStream({"a", "\n"});
  GenerateFlags flags = Prompt("p");
  flags.logprobs = 1;
  EXPECT_EQ(Generate(flags), kExitOk);
  EXPECT_THAT(out(), StartsWith("a\n\n\nID"));
  EXPECT_THAT(out(), HasSubstr("\"\\n\" 0.0000"));
}

TEST_F(CommandTest, SeveralChoicesEachHaveAHeader) {
  GenerateFlags flags = Prompt("p");
  flags.n = 2;
  flags.no_stream = true;
  EXPECT_EQ(Generate(flags), kExitOk);
  EXPECT_EQ(out(), "--- choice 0\nanswer 0\n--- choice 1\nanswer 1\n");
}

TEST_F(CommandTest, NoStreamPrintsTheSameForm) {
  GenerateFlags flags = Prompt("p");
  flags.no_stream = true;
  EXPECT_EQ(Generate(flags), kExitOk);
  EXPECT_EQ(out(), "answer 0\n");
}

TEST_F(CommandTest, GenerateAsJsonIsTheResponse) {
  UseJson();
  EXPECT_EQ(Generate(Prompt("p")), kExitOk);
  EXPECT_EQ(json()["choices"][0]["text"], "answer 0");
}

TEST_F(CommandTest, AFailedStreamKeepsItsTextAndGivesTheCode) {
  router_.SetStream({"Once"}, kUnavailable);
  EXPECT_EQ(Generate(Prompt("p")), kExitRpcBase + 14);
  EXPECT_EQ(out(), "Once\n");
  EXPECT_EQ(err(), "error: UNAVAILABLE: draining\n");
}

TEST_F(CommandTest, AModelCannotControlTheTerminal) {
  router_.SetStream({"a\033[2Jb"});
  session_.out_is_terminal = true;
  EXPECT_EQ(Generate(Prompt("p")), kExitOk);
  EXPECT_EQ(out(), "a[2Jb\n");
}

TEST_F(CommandTest, ATimeoutIsTheDeadlineOfTheCall) {
  router_.SetStream({"a"}, grpc::Status::OK, /*hangs=*/true);
  session_.timeout = absl::Milliseconds(50);
  EXPECT_EQ(Generate(Prompt("p")), kExitRpcBase + 4);
  EXPECT_EQ(err(), "error: DEADLINE_EXCEEDED: not done after --timeout 0.05 s\n");
}

}  // namespace
}  // namespace shoal::cli
