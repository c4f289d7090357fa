#include "cli/command_chat.h"

#include <string>

#include "cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/command_fixture.h"

namespace shoal::cli {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

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

}  // namespace
}  // namespace shoal::cli
