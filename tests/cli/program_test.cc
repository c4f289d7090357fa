// shoalctl as a program: its flags, its signals, and `serve` with a router and ranks that are
// scripts beside it.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/fake_router.h"

extern char** environ;

namespace shoal::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const char* const kProgram = SHOAL_BINARY_DIR "/bin/shoalctl";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string LastLine(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  return lines.empty() ? "" : lines.back();
}

class ProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kProgram)) GTEST_SKIP() << kProgram << " is not built";
    std::string pattern = testing::TempDir() + "shoalctl.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  void Start(const std::string& program, std::vector<std::string> args) {
    const std::string out = stdout_.empty() ? Path("out") : stdout_;
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, stdin_.c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&files, 2, Path("err").c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    args.insert(args.begin(), program);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    ASSERT_EQ(posix_spawn(&pid_, program.c_str(), &files, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
  }

  // The exit code, or minus the signal.
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

  int Run(std::vector<std::string> args) {
    Start(kProgram, std::move(args));
    return Wait();
  }

  std::string out() const { return ReadFile(Path("out")); }
  std::string err() const { return ReadFile(Path("err")); }

  std::string folder_;
  std::string stdin_ = "/dev/null";
  std::string stdout_;  // a path; empty: out()
  pid_t pid_ = 0;
};

TEST_F(ProgramTest, WrongUsageIsExitTwoWithTheErrorLast) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"frob"},
      {"--frob"},
      {"generate"},
      {"generate", "--frob", "a"},
      {"generate", "--server", "x", "--server", "y", "a"},
      {"generate", "--max-tokens", "1", "--max-tokens", "2", "a"},
      {"generate", "--max-tokens=", "5"},
      {"generate", "--server=", "a"},
      {"generate", "--server", "http://localhost:8500", "a"},
      {"generate", "--server", ":8610", "a"},
      {"generate", "--server", "localhost:0", "a"},
      {"generate", "--top-p", "0", "a"},
      {"generate", "--priority", "urgent", "a"},
      {"graph", "--tp", "2", "--rank", "2", "/dev/null"},
      {"graph", "--tp", "9", "/dev/null"},
      {"help", "frob"},
      {"ps", "--watch", "0"},
      {"generate", "--server", "", "a"},
      {"generate", "--max-tokens", "-1", "a"},
      {"generate", "--max-tokens", "1.5", "a"},
      {"generate", "--max-tokens", "4294967296", "a"},
      {"generate", "--seed", "18446744073709551616", "a"},
      {"generate", "--temperature", "nan", "a"},
      {"generate", "--temperature", "101", "a"},
      {"generate", "--top-p", "1.1", "a"},
      {"generate", "--top-k", "1", "--temperature", "0", "a"},
      {"generate", "--system", "s", "a"},
      {"generate", "-n", "0", "a"},
      {"generate", "-o", "xml", "a"},
      {"generate", "--timeout", "0", "a"},
      {"serve"},
      {"serve", "--tp", "9", "/dev/null"},
      {"serve", "--isa", "mmx", "/dev/null"},
      {"serve", "--kv-cache-dtype", "f8", "/dev/null"},
      {"serve", "--kv-cache-bytes", "2XB", "/dev/null"},
      {"serve", "--max-batch-tokens", "0", "/dev/null"},
      {"serve", "--server", "x", "/dev/null"},
      {"status", "--server", "x"},
      {"bench", "--rate", "1", "--clients", "2"},
      {"cancel"},
      {"completion", "fish"},
  };
  for (const std::vector<std::string>& args : wrong) {
    SCOPED_TRACE(testing::PrintToString(args));
    EXPECT_EQ(Run(args), kExitUsage);
    EXPECT_THAT(LastLine(err()), AllOf(StartsWith("error: "), Not(HasSubstr("INVALID_ARGUMENT"))));
    EXPECT_EQ(out(), "");
  }
}

TEST_F(ProgramTest, HelpAndVersionAreOnStdout) {
  EXPECT_EQ(Run({"--help"}), kExitOk);
  const std::string help = out();
  for (const char* command :
       {"serve", "generate", "chat", "tokenize", "detokenize", "models", "status", "ps", "cancel",
        "graph", "plan", "replay", "trace", "bench", "health", "version"}) {
    EXPECT_THAT(help, HasSubstr(command));
    EXPECT_EQ(Run({command, "--help"}), kExitOk);
    EXPECT_THAT(out(), HasSubstr("Usage: shoalctl "));
    EXPECT_EQ(err(), "");
  }
  EXPECT_EQ(Run({"help"}), kExitOk);
  EXPECT_EQ(out(), help) << "the commands, and not the help of help";
  EXPECT_EQ(Run({"help", "generate"}), kExitOk);
  EXPECT_THAT(out(), HasSubstr("Usage: shoalctl generate [OPTIONS] [PROMPT...]"));
  EXPECT_THAT(out(), AllOf(HasSubstr("--top-p >0..1 "), HasSubstr("--max-tokens N=256 "),
                           HasSubstr("{low,normal,high}"), Not(HasSubstr("UINT"))));
  EXPECT_EQ(Run({"version"}), kExitOk);
  EXPECT_THAT(out(), StartsWith("shoalctl "));
}

TEST_F(ProgramTest, ADeadRouterIsExitThreeWithTheErrorLast) {
  EXPECT_EQ(Run({"generate", "--server", "127.0.0.1:1", "a"}), kExitCannotConnect);
  EXPECT_THAT(LastLine(err()), HasSubstr("error: UNAVAILABLE: cannot connect to 127.0.0.1:1"));
}

TEST_F(ProgramTest, AMistypedNameIsToldWithTheNearest) {
  const auto error_of = [&](std::vector<std::string> args) {
    EXPECT_EQ(Run(std::move(args)), kExitUsage);
    return LastLine(err());
  };
  EXPECT_THAT(error_of({"generate", "--temprature", "1", "hi"}),
              HasSubstr("there is no option --temprature: did you mean --temperature?"));
  EXPECT_THAT(error_of({"generate", "--temprature=1", "hi"}), HasSubstr("--temperature?"));
  EXPECT_THAT(error_of({"generat"}), HasSubstr("did you mean generate?"));
  EXPECT_THAT(error_of({"status", "--server", "x"}), HasSubstr("--admin"));
  EXPECT_THAT(error_of({"models", "--admin", "x"}), HasSubstr("--server"));
  EXPECT_THAT(error_of({"generate", "--qqqqqqq", "hi"}), Not(HasSubstr("did you mean")));
  EXPECT_THAT(error_of({}), HasSubstr("a command is missing"));
  EXPECT_THAT(err(), HasSubstr("  generate ")) << "with the commands";
}

TEST_F(ProgramTest, BashCompletesCommandsOptionsAndTheFilesOfCommandsThatTakeOne) {
  std::ofstream(Path("a.gguf")) << "x";
  const auto complete = [&](const std::string& words) {
    Start("/bin/bash", {"--norc", "-c",
                        "cd \"$1\" && source <(\"$0\" completion bash) && COMP_WORDS=(" + words +
                            ") COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) && _shoalctl && "
                            "echo \"${COMPREPLY[*]}\"",
                        kProgram, folder_});
    EXPECT_EQ(Wait(), 0) << err();
    return out();
  };
  EXPECT_EQ(complete("shoalctl gen"), "generate\n");
  EXPECT_EQ(complete("shoalctl generate --max"), "--max-tokens\n");
  EXPECT_EQ(complete("shoalctl serve a"), "a.gguf\n");
  EXPECT_EQ(complete("shoalctl graph a"), "a.gguf\n");
  EXPECT_EQ(complete("shoalctl generate a"), "\n") << "a text, no file";
}

TEST_F(ProgramTest, WhatCannotBeWrittenIsAnError) {
  FakeRouter router;
  router.SetStream({"hello"});
  stdout_ = "/dev/full";
  const std::vector<std::vector<std::string>> all = {
      {"models", "--server", router.address()},
      {"generate", "--server", router.address(), "a"},
      {"chat", "--server", router.address()},
      {"version"},
      {"--help"},
      {"completion", "bash"}};
  std::ofstream(Path("in")) << "hello\n";
  stdin_ = Path("in");
  for (const std::vector<std::string>& args : all) {
    SCOPED_TRACE(args[0]);
    EXPECT_EQ(Run(args), kExitRuntime);
    EXPECT_EQ(err(), "error: cannot write to stdout: No space left on device\n");
  }
}

TEST_F(ProgramTest, AFullDiskStopsTheGeneration) {
  FakeRouter router;
  router.SetStream({"hello"}, grpc::Status::OK, /*hangs=*/true);
  stdout_ = "/dev/full";
  EXPECT_EQ(Run({"generate", "--server", router.address(), "a"}), kExitRuntime);
  router.WaitForCancel();
}

TEST_F(ProgramTest, WordsAndStdinAreThePrompt) {
  FakeRouter router;
  EXPECT_EQ(Run({"generate", "-s", router.address(), "hello", "world"}), kExitOk) << err();
  EXPECT_EQ(router.generate_requests().back().prompt(), "hello world");
  std::ofstream(Path("in")) << "piped\n";
  stdin_ = Path("in");
  EXPECT_EQ(Run({"generate", "-s", router.address(), "-t", "0.5", "-m", "tiny"}), kExitOk) << err();
  EXPECT_EQ(router.generate_requests().back().prompt(), "piped\n");
  EXPECT_EQ(router.generate_requests().back().model(), "tiny");
}

TEST_F(ProgramTest, AnEmptyTextIsTokenized) {
  FakeRouter router;
  EXPECT_EQ(Run({"tokenize", "--server", router.address(), ""}), kExitOk) << err();
}

TEST_F(ProgramTest, WatchShowsItAgainUntilCtrlC) {
  FakeRouter router;
  Start(kProgram, {"ps", "--admin", router.address(), "--watch", "0.01"});
  router.WaitForLists(3);
  kill(pid_, SIGINT);
  EXPECT_EQ(Wait(), kExitInterrupted);
}

TEST_F(ProgramTest, AFlagGoesBeforeTheEnvironment) {
  FakeRouter router;
  router.SetStream({"hello"});
  setenv("SHOAL_SERVER", "127.0.0.1:1", 1);
  setenv("SHOAL_ADMIN", "127.0.0.1:1", 1);
  EXPECT_EQ(Run({"generate", "--server", router.address(), "a"}), kExitOk) << err();
  EXPECT_EQ(Run({"models", "--server", router.address()}), kExitOk) << err();
  EXPECT_EQ(Run({"status", "--admin", router.address()}), kExitOk) << err();
  EXPECT_EQ(Run({"models"}), kExitCannotConnect);
  EXPECT_EQ(Run({"status"}), kExitCannotConnect);
  unsetenv("SHOAL_SERVER");
  unsetenv("SHOAL_ADMIN");
}

TEST_F(ProgramTest, TheServerMayComeFromTheEnvironment) {
  FakeRouter router;
  router.SetStream({"hello"});
  setenv("SHOAL_SERVER", router.address().c_str(), 1);
  EXPECT_EQ(Run({"generate", "--", "--stop"}), kExitOk);
  unsetenv("SHOAL_SERVER");
  EXPECT_EQ(out(), "hello\n");
  EXPECT_EQ(router.generate_requests().back().prompt(), "--stop");
}

TEST_F(ProgramTest, CtrlCCancelsTheCallAndExits130) {
  FakeRouter router;
  router.SetStream({"hello"}, grpc::Status::OK, /*hangs=*/true);
  Start(kProgram, {"generate", "--server", router.address(), "a"});
  router.WaitForStream();
  kill(pid_, SIGINT);
  router.WaitForCancel();
  EXPECT_EQ(Wait(), kExitInterrupted);
}

// shoalctl beside a router and a worker that are scripts. They tell what happens to them through a
// fifo, so that nothing is polled.
class ServeTest : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    if (IsSkipped()) return;
    std::filesystem::copy_file(kProgram, Path("shoalctl"));
    std::ofstream(Path("model.gguf")) << "x";
    ASSERT_EQ(mkfifo(Path("events").c_str(), 0600), 0);
    events_ = open(Path("events").c_str(), O_RDWR | O_CLOEXEC);  // never at its end
    ASSERT_GE(events_, 0);
    WriteScript("shoal-worker",
                "#!/bin/sh\n"
                "trap 'kill $!; echo \"$id ends\" > DIR/events; exit 0' TERM\n"
                "id=$(echo \"$*\" | sed 's/.*--worker-id \\([^ ]*\\).*/\\1/')\n"
                "echo \"$*\" > DIR/$id.args\n"
                "echo READY\n"
                "echo \"$id $$\" > DIR/events\n"
                "sleep 60 > /dev/null 2>&1 & wait $!\n");
    WriteRouter("echo READY listen=1.2.3.4:1 admin=1.2.3.4:2\n", "exit 0");
  }
  void TearDown() override {
    if (pid_ > 0) {  // so that the children of serve go too
      kill(pid_, SIGTERM);
      kill(pid_, SIGTERM);
      Wait();
    }
    if (events_ >= 0) close(events_);
    ProgramTest::TearDown();
  }

  void WriteScript(const std::string& name, std::string text) {
    for (size_t at; (at = text.find("DIR")) != std::string::npos;) text.replace(at, 3, folder_);
    std::ofstream(Path(name)) << text;
    ASSERT_EQ(chmod(Path(name).c_str(), 0700), 0);
  }
  void WriteRouter(const std::string& start, const std::string& on_term) {
    WriteScript("shoal-router",
                "#!/bin/sh\n"
                "trap 'kill $!; echo \"router drains\" > DIR/events; " +
                    on_term +
                    "' TERM\n"
                    "echo \"$*\" > DIR/router.args\n" +
                    start +
                    "echo \"router $$\" > DIR/events\n"
                    "while :; do sleep 60 > /dev/null 2>&1 & wait $!; done\n");
  }

  void Serve(std::vector<std::string> args) {
    args.insert(args.begin(), "serve");
    args.push_back(Path("model.gguf"));
    Start(Path("shoalctl"), args);
  }

  // The next line of the children. Fails the test after 20 s.
  std::string NextEvent() {
    while (lines_.find('\n') == std::string::npos) {
      pollfd fd = {events_, POLLIN, 0};
      if (poll(&fd, 1, 20000) != 1) {
        ADD_FAILURE() << "no event; stderr: " << err();
        return "";
      }
      char buffer[512];
      const ssize_t size = read(events_, buffer, sizeof(buffer));
      lines_.append(buffer, size > 0 ? size : 0);
    }
    const std::string line = lines_.substr(0, lines_.find('\n'));
    lines_.erase(0, line.size() + 1);
    return line;
  }
  // Events until `count` processes have told their ids. Returns them by name.
  std::map<std::string, pid_t> WaitForStarts(int count) {
    std::map<std::string, pid_t> pids;
    while (static_cast<int>(pids.size()) < count && !HasFailure()) {
      const std::vector<std::string> words = absl::StrSplit(NextEvent(), ' ');
      if (words.size() == 2) pids[words[0]] = std::atoi(words[1].c_str());
    }
    return pids;
  }

  int events_ = -1;
  std::string lines_;
};

TEST_F(ServeTest, PrintsTheRoutersReadyLineAndDrainsOnSigterm) {
  Serve({"--tp", "2"});
  WaitForStarts(3);
  kill(pid_, SIGTERM);
  EXPECT_EQ(NextEvent(), "router drains") << "before the ranks end";
  EXPECT_THAT(NextEvent(), HasSubstr("ends"));
  EXPECT_THAT(NextEvent(), HasSubstr("ends"));
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(out(), "READY listen=1.2.3.4:1 admin=1.2.3.4:2\n");
}

TEST_F(ServeTest, GivesTheChildrenWhatTheyNeed) {
  Serve({"--tp", "2", "--threads", "1", "--isa", "portable", "--kv-cache-bytes", "2MiB",
         "--no-prefix-cache", "--max-batch-seqs", "3"});
  WaitForStarts(3);
  const std::string parent = "--parent-pid " + std::to_string(pid_);
  const std::string rank = ReadFile(Path("rank-1.args"));
  EXPECT_THAT(rank, AllOf(HasSubstr("--model " + Path("model.gguf")), HasSubstr(parent),
                          HasSubstr("--threads 1"), HasSubstr("--isa portable"),
                          HasSubstr("--listen unix-abstract:shoal-")));
  const std::string router = ReadFile(Path("router.args"));
  EXPECT_THAT(router, AllOf(HasSubstr("--tensor-parallel-size 2"), HasSubstr(parent),
                            HasSubstr("--kv-cache-bytes 2097152"), HasSubstr("--no-prefix-cache"),
                            HasSubstr("--max-batch-seqs 3")));
  EXPECT_THAT(router, Not(HasSubstr("--listen"))) << "the default and the environment are its own";
  EXPECT_THAT(router, HasSubstr("--model-name model ")) << "the file's name";
  const std::string address = rank.substr(rank.find("unix-abstract:"));
  EXPECT_THAT(router, HasSubstr("," + address.substr(0, address.find(' '))));
}

TEST_F(ServeTest, AModelsNameMayBeGiven) {
  Serve({"--model-name", "mine"});
  WaitForStarts(2);
  EXPECT_THAT(ReadFile(Path("router.args")),
              AllOf(HasSubstr("--model-name mine"), Not(HasSubstr("--model-name model"))));
}

TEST_F(ServeTest, TooManyThreadsDoNotSpin) {
  Serve({"--tp", "2", "--threads", "1000"});
  WaitForStarts(3);
  const std::string rank = ReadFile(Path("rank-0.args"));
  EXPECT_THAT(rank, AllOf(HasSubstr("--no-spin"), Not(HasSubstr("--cpus"))));
}

TEST_F(ServeTest, RestartsAKilledRank) {
  Serve({"--tp", "2"});
  const auto pids = WaitForStarts(3);
  kill(pids.at("rank-1"), SIGKILL);
  const auto again = WaitForStarts(1);
  ASSERT_EQ(again.count("rank-1"), 1u);
  EXPECT_NE(again.at("rank-1"), pids.at("rank-1"));
  EXPECT_THAT(err(), HasSubstr("rank 1 was killed by signal 9: restarting in "));
}

TEST_F(ServeTest, ARankThatCannotStartEndsServe) {
  WriteScript("shoal-worker", "#!/bin/sh\necho 'error: no such layer' >&2\nexit 1\n");
  WriteRouter("", "exit 0");  // never ready
  Serve({"--tp", "2"});
  EXPECT_EQ(Wait(), kExitRuntime);
  EXPECT_THAT(err(), HasSubstr("error: no such layer\n"));
  EXPECT_THAT(LastLine(err()), HasSubstr("exited with code 1 before the cluster was ready"));
  EXPECT_EQ(out(), "");
}

TEST_F(ServeTest, TheRoutersExitCodeIsServes) {
  WriteScript("shoal-router", "#!/bin/sh\necho 'error: --x is wrong' >&2\nexit 2\n");
  Serve({"--tp", "1"});
  EXPECT_EQ(Wait(), 2);
  EXPECT_EQ(LastLine(err()), "error: the router exited with code 2");
}

TEST_F(ServeTest, ASecondSignalEndsAtOnce) {
  WriteRouter("echo READY\n", ":");  // drains for ever
  Serve({"--tp", "2"});
  WaitForStarts(3);
  kill(pid_, SIGTERM);
  EXPECT_EQ(NextEvent(), "router drains");
  kill(pid_, SIGTERM);
  EXPECT_EQ(Wait(), 128 + SIGTERM);
}

TEST_F(ServeTest, AModelThatIsNotThereStartsNothing) {
  EXPECT_EQ(Run({"serve", Path("other.gguf")}), kExitRuntime);
  EXPECT_THAT(err(), HasSubstr("error: cannot read the model " + Path("other.gguf")));
}

TEST_F(ServeTest, AMissingProgramStartsNothing) {
  std::filesystem::remove(Path("shoal-router"));
  Serve({});
  EXPECT_EQ(Wait(), kExitRuntime);
  EXPECT_THAT(err(), HasSubstr("error: cannot run " + Path("shoal-router")));
}

}  // namespace
}  // namespace shoal::cli
