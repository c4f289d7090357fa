#include "base/stderr_sink.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::base {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

void Log(StderrSink* sink, const std::string& message) {
  sink->send(google::GLOG_INFO, "folder/file.cc", "file.cc", 12, google::LogMessageTime(),
             message.data(), message.size());
}

// What is there now.
std::string ReadAll(int fd) {
  std::string all;
  std::string chunk(1 << 16, '\0');
  while (true) {
    const ssize_t size = recv(fd, chunk.data(), chunk.size(), MSG_DONTWAIT);
    const ssize_t got = size >= 0 ? size : read(fd, chunk.data(), chunk.size());
    if (got <= 0) return all;
    all.append(chunk, 0, static_cast<size_t>(got));
  }
}

// Lines until far more than the descriptor holds: this returns only if none of them waits.
void Flood(StderrSink* sink) {
  for (int i = 0; i < 20'000; ++i) Log(sink, std::string(100, 'x'));
}

TEST(StderrSinkTest, APipeThatNobodyReadsLosesLinesAndSaysSo) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  {
    StderrSink sink(ends[1]);
    EXPECT_EQ(fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0) << "others share the descriptor";
    Log(&sink, "first");
    EXPECT_THAT(ReadAll(ends[0]), AllOf(HasSubstr("file.cc:12] first"), EndsWith("\n")));
    Flood(&sink);
    EXPECT_GT(ReadAll(ends[0]).size(), 4096u);
    Log(&sink, "after");
    EXPECT_THAT(ReadAll(ends[0]), AllOf(HasSubstr("log lines were dropped"), HasSubstr("after")));
    Log(&sink, "again");
    EXPECT_THAT(ReadAll(ends[0]), Not(HasSubstr("dropped")));
  }
  close(ends[0]);
  close(ends[1]);
}

TEST(StderrSinkTest, ASocketThatNobodyReadsLosesLines) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  {
    StderrSink sink(ends[1]);
    Flood(&sink);
    EXPECT_GT(ReadAll(ends[0]).size(), 4096u);
  }
  close(ends[0]);
  close(ends[1]);
}

TEST(StderrSinkTest, AFileGetsEverything) {
  char path[] = "/tmp/stderr_sink_test_XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  {
    StderrSink sink(fd);
    Flood(&sink);
    Log(&sink, "last");
  }
  const off_t size = lseek(fd, 0, SEEK_END);
  EXPECT_GT(size, 20'000 * 100);
  std::string tail(5, '\0');
  EXPECT_EQ(pread(fd, tail.data(), tail.size(), size - 5), 5);
  EXPECT_EQ(tail, "last\n");
  close(fd);
  unlink(path);
}

}  // namespace
}  // namespace shoal::base
