// Every command that calls a router, against one that a test drives.

#include <functional>
#include <sstream>

#include "absl/time/clock.h"
#include "cli/command_bench.h"
#include "cli/command_chat.h"
#include "cli/command_cluster.h"
#include "cli/command_generate.h"
#include "cli/command_tokens.h"
#include "cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/fake_router.h"

namespace shoal::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

const grpc::Status kUnavailable(grpc::StatusCode::UNAVAILABLE, "draining");

class CommandTest : public testing::Test {
 protected:
  CommandTest() {
    session_.out = &out_;
    session_.err = &err_;
    session_.server = session_.admin = router_.address();
  }

  void UseJson() { session_.format = Format::kJson; }
  std::string out() { return out_.str(); }
  std::string err() { return err_.str(); }
  nlohmann::json json() { return nlohmann::json::parse(out()); }  // throws if it is not JSON
  v1::GenerateRequest request() { return router_.generate_requests().back(); }

  int Generate(const GenerateFlags& flags, const std::string& in = "") {
    std::istringstream input(in);
    return RunGenerate(session_, flags, &input);
  }
  int Chat(const ChatFlags& flags, const std::string& in) {
    std::istringstream input(in);
    return RunChat(session_, flags, [&](std::string* line) {
      return static_cast<bool>(std::getline(input, *line));
    });
  }

  FakeRouter router_;
  std::ostringstream out_, err_;
  Session session_;
};

GenerateFlags Prompt(std::string prompt) {
  GenerateFlags flags;
  flags.words = {std::move(prompt)};
  return flags;
}

// --- generate

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

v1::Usage MakeUsage(uint32_t prompt, uint32_t cached, uint32_t completion) {
  v1::Usage usage;
  usage.set_prompt_tokens(prompt);
  usage.set_cached_prompt_tokens(cached);
  usage.set_completion_tokens(completion);
  return usage;
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

// --- chat

TEST_F(CommandTest, ChatKeepsTheConversation) {
  router_.SetStream({"An", "swer"});
  ChatFlags flags;
  flags.system = "s";
  EXPECT_EQ(Chat(flags, "one\n\n  \ntwo"), kExitOk);
  EXPECT_EQ(out(), "Answer\nAnswer\n");
  ASSERT_THAT(router_.generate_requests(), SizeIs(2));
  std::string turns;
  const v1::GenerateRequest last = request();
  for (const v1::ChatMessage& message : last.chat().messages()) {
    turns += message.role() + ":" + message.content() + " ";
  }
  EXPECT_EQ(turns, "system:s user:one assistant:Answer user:two ");
}

TEST_F(CommandTest, ChatEndsAtAnErrorUnlessSomebodySitsThere) {
  router_.SetStream({}, kUnavailable);
  EXPECT_EQ(Chat(ChatFlags(), "one\ntwo\n"), kExitRpcBase + 14);
  EXPECT_THAT(router_.generate_requests(), SizeIs(1));
  ChatFlags interactive;
  interactive.is_interactive = true;
  EXPECT_EQ(Chat(interactive, "one\ntwo\n"), kExitOk);
  ASSERT_THAT(router_.generate_requests(), SizeIs(3));
  EXPECT_THAT(request().chat().messages(), SizeIs(1)) << "a failed turn is forgotten";
}

TEST_F(CommandTest, ChatSamplesAndEndsUnlessTold) {
  EXPECT_EQ(Chat(ChatFlags(), "one\n"), kExitOk);
  EXPECT_EQ(request().sampling().temperature(), 0.7f);
  EXPECT_EQ(request().sampling().repetition_penalty(), 1.1f);
  EXPECT_EQ(request().stop().max_tokens(), 1024u);
  ChatFlags greedy;
  greedy.sampling.temperature = 0;
  EXPECT_EQ(Chat(greedy, "one\n"), kExitOk);
  EXPECT_EQ(request().sampling().temperature(), 0);
  EXPECT_FALSE(request().sampling().has_repetition_penalty());
}

std::string Turns(const v1::GenerateRequest& request) {
  std::string turns;
  for (const v1::ChatMessage& message : request.chat().messages()) {
    turns += message.role() + ":" + message.content() + " ";
  }
  return turns;
}

TEST_F(CommandTest, AChatThatOutgrowsTheContextForgetsItsOldestMessages) {
  router_.SetStream({"A"});
  router_.SetTokensPerMessage(60);  // of 256, of which 64 are for the answer: three fit
  ChatFlags flags;
  flags.system = "s";
  EXPECT_EQ(Chat(flags, "one\ntwo\nthree\n"), kExitOk);
  EXPECT_EQ(Turns(request()), "system:s user:three ");
  EXPECT_THAT(err(), HasSubstr("(the context of 256 tokens is full: the oldest 2 messages are "
                               "forgotten)\n"));
  EXPECT_THAT(router_.generate_requests(), SizeIs(3));
}

TEST_F(CommandTest, APersonMayGiveCommands) {
  router_.SetStream({"A"});
  ChatFlags flags;
  flags.is_interactive = true;
  EXPECT_EQ(Chat(flags, "one\n/help\n/frob\n/clear\n/usr is a folder?\n/exit\ntwo\n"), kExitOk);
  EXPECT_THAT(router_.generate_requests(), SizeIs(2));
  EXPECT_EQ(Turns(request()), "user:/usr is a folder? ");
  EXPECT_THAT(err(), HasSubstr("tiny, 256 tokens of context"));
  EXPECT_THAT(err(), HasSubstr("/clear, /reset"));
  EXPECT_THAT(err(), HasSubstr("There is no command /frob"));
  EXPECT_EQ(Chat(ChatFlags(), "/exit\n"), kExitOk);
  EXPECT_EQ(Turns(request()), "user:/exit ") << "a script's line is a message";
}

// --- tokens

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

// --- cluster

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

// --- every command

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

// --- bench

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
