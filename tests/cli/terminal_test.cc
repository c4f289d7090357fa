// `shoalctl chat` at a terminal: a pseudo terminal on which this test types.

#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <filesystem>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/fake_router.h"

namespace shoal::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const char* const kProgram = SHOAL_BINARY_DIR "/bin/shoalctl";
constexpr absl::Duration kPatience = absl::Seconds(30);

class TerminalTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kProgram)) GTEST_SKIP() << kProgram << " is not built";
    router_.SetStream({"An", "swer."});
  }
  void TearDown() override {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    if (terminal_ >= 0) close(terminal_);
  }

  void Start() { StartProgram(kProgram, {"chat", "--server", router_.address()}); }

  void StartProgram(std::string program, std::vector<std::string> args) {
    args.insert(args.begin(), program);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    ASSERT_GE(pid_, 0);
    if (pid_ == 0) {
      setenv("LC_ALL", "C", 1);  // a bare machine's
      setenv("TERM", "xterm", 1);
      setenv("HOME", "/nonexistent", 1);
      execv(program.c_str(), argv.data());
      _exit(127);
    }
    ASSERT_TRUE(AwaitPrompt());
  }

  void Type(const std::string& keys) {
    ASSERT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  // Reads what is shown until `text` is in what was not awaited before.
  bool Await(const std::string& text) {
    const absl::Time end = absl::Now() + kPatience;
    while (true) {
      if (const size_t at = shown_.find(text); at != std::string::npos) {
        shown_.erase(0, at + text.size());
        return true;
      }
      pollfd watched{terminal_, POLLIN, 0};
      char bytes[4096];
      if (absl::Now() > end || poll(&watched, 1, 1000) < 0) return false;
      if ((watched.revents & (POLLIN | POLLHUP)) == 0) continue;
      const ssize_t size = read(terminal_, bytes, sizeof(bytes));
      if (size <= 0) return false;
      shown_.append(bytes, static_cast<size_t>(size));
    }
  }

  // A prompt, and that keys are no longer the terminal's but the editor's, which is just after.
  bool AwaitPrompt() {
    if (!Await("> ")) return false;
    const absl::Time end = absl::Now() + kPatience;
    termios now = {};
    do {
      if (tcgetattr(terminal_, &now) != 0 || absl::Now() > end) return false;
      sched_yield();
    } while ((now.c_lflag & ICANON) != 0);
    return true;
  }

  // The exit code, or minus the signal.
  int Wait() {
    while (Await("\n")) {
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

  // What the user's messages were, in the last request.
  std::vector<std::string> Messages() {
    std::vector<std::string> messages;
    const std::vector<v1::GenerateRequest> requests = router_.generate_requests();
    if (requests.empty()) return messages;
    for (const v1::ChatMessage& message : requests.back().chat().messages()) {
      if (message.role() == "user") messages.push_back(message.content());
    }
    return messages;
  }

  FakeRouter router_;
  pid_t pid_ = 0;
  int terminal_ = -1;
  std::string shown_;
};

TEST_F(TerminalTest, ALineIsEditedAndTheOneBeforeComesBack) {
  Start();
  Type("Is h\xc3\xb6t\x1b[Dl\x1b[D\x7fo\x01>\x05?\r");  // left, l, left, backspace, o; start, end
  ASSERT_TRUE(Await("Answer."));
  EXPECT_THAT(Messages(), ElementsAre(">Is holt?"));
  ASSERT_TRUE(AwaitPrompt());
  Type("\x1b[A!\r");
  ASSERT_TRUE(Await("Answer."));
  EXPECT_THAT(Messages(), ElementsAre(">Is holt?", ">Is holt?!"));
  ASSERT_TRUE(AwaitPrompt());
  Type("\x04");
  EXPECT_EQ(Wait(), 0);
}

TEST_F(TerminalTest, CtrlCDropsTheLineAndABackslashContinuesIt) {
  Start();
  Type("nonsense\x03");
  ASSERT_TRUE(Await("^C"));
  ASSERT_TRUE(AwaitPrompt());
  Type("one\\\r");
  ASSERT_TRUE(Await(". "));
  Type("two\r");
  ASSERT_TRUE(Await("Answer."));
  EXPECT_THAT(Messages(), ElementsAre("one\ntwo"));
}

TEST_F(TerminalTest, CtrlCEndsAnAnswerAndTheConversationGoesOn) {
  router_.SetStream({"An", "swer."}, grpc::Status::OK, /*hangs=*/true);
  Start();
  Type("one\r");
  ASSERT_TRUE(Await("Answer."));
  Type("\x03");
  router_.WaitForCancel();
  ASSERT_TRUE(AwaitPrompt());
  Type("/exit\r");
  EXPECT_EQ(Wait(), 0);
}

TEST_F(TerminalTest, CtrlZStopsTheProcessAndALineSurvivesIt) {
  StartProgram("/bin/bash",
               {"--norc", "-c", "set -m; \"$0\" chat --server \"$1\"; stty -a; fg; exit $?",
                kProgram, router_.address()});
  Type("one\x1a");
  ASSERT_TRUE(Await("Stopped"));
  ASSERT_TRUE(Await(" icanon")) << "the terminal is the shell's again";
  ASSERT_TRUE(AwaitPrompt());
  Type(" two\r");
  ASSERT_TRUE(Await("Answer."));
  EXPECT_THAT(Messages(), ElementsAre("one two"));
  Type("/exit\r");
  EXPECT_EQ(Wait(), 0);
}

TEST_F(TerminalTest, ASignalLeavesTheTerminalAsItWas) {
  Start();
  kill(pid_, SIGTERM);
  EXPECT_EQ(Wait(), 128 + SIGTERM);
  termios after = {};
  ASSERT_EQ(tcgetattr(terminal_, &after), 0);
  EXPECT_NE(after.c_lflag & ICANON, 0u);
  EXPECT_NE(after.c_lflag & ECHO, 0u);
  EXPECT_EQ(after.c_cc[VINTR], 3);
}

}  // namespace
}  // namespace shoal::cli
