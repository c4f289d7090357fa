#include "parallel/shm_transport.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "parallel/cancel_event.h"
#include "parallel/shm_socket.h"

namespace shoal::parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

constexpr uid_t kOtherUser = 65534;

ShmOptions Options(int rank, int size) {
  ShmOptions options;
  options.nonce = absl::StrCat("test-", getpid(), "-",
                               ::testing::UnitTest::GetInstance()->current_test_info()->name());
  options.rank = rank;
  options.size = size;
  options.connect_timeout = absl::Seconds(30);
  options.op_timeout = absl::Seconds(60);
  options.slot_bytes = 4096;
  options.message_slot_bytes = 4096;
  return options;
}

// A rank in a process of its own. `body` ends with the process's exit code.
pid_t StartRank(ShmOptions options, const std::function<int(Transport&)>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    auto transport = ConnectShm(options);
    _exit(transport.ok() ? body(**transport) : 100);
  }
  return pid;
}

int ExitCode(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void WaitUntilWaitingFor(const Transport& transport, int peer) {
  while (transport.wait_info().waiting_for != peer) std::this_thread::yield();
}

int NumEntries(const char* folder) {
  int count = 0;
  DIR* dir = opendir(folder);
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

std::string UnixSockets() {
  std::ifstream file("/proc/net/unix");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

TEST(ShmTransportTest, ProcessesGatherEachOthersBytes) {
  const auto gather = [](Transport& transport) {
    for (uint32_t op = 0; op < 2000; ++op) {
      const uint32_t mine[3] = {op, static_cast<uint32_t>(transport.rank()), ~op};
      uint32_t all[9] = {};
      if (!transport.AllGather(mine, sizeof(mine), all).ok()) return 1;
      for (uint32_t rank = 0; rank < 3; ++rank) {
        const uint32_t expected[3] = {op, rank, ~op};
        if (std::memcmp(all + 3 * rank, expected, sizeof(expected)) != 0) return 2;
      }
    }
    return 0;
  };
  const pid_t first = StartRank(Options(1, 3), gather);
  const pid_t second = StartRank(Options(2, 3), gather);
  auto transport = ConnectShm(Options(0, 3));
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_EQ(gather(**transport), 0);
  EXPECT_EQ(ExitCode(first), 0);
  EXPECT_EQ(ExitCode(second), 0);
}

// Each rank in turn is killed while all the others wait for it.
TEST(ShmTransportTest, KillingAnyRankFailsTheOthersWithinAHundredMilliseconds) {
  constexpr int kSize = 3;
  for (int victim = 1; victim < kSize; ++victim) {
    const auto survive = [victim](Transport& transport) {
      if (!transport.Barrier().ok()) return 1;
      if (transport.rank() == victim) {
        while (true) pause();
      }
      return transport.Barrier().code() == absl::StatusCode::kUnavailable ? 0 : 2;
    };
    ShmOptions options = Options(0, kSize);
    options.nonce += std::to_string(victim);
    std::vector<pid_t> pids;
    for (options.rank = 1; options.rank < kSize; ++options.rank) {
      pids.push_back(StartRank(options, survive));
    }
    options.rank = 0;
    auto transport = ConnectShm(options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    ASSERT_TRUE((*transport)->Barrier().ok());
    Clock::time_point killed;
    std::thread killer([&] {
      WaitUntilWaitingFor(**transport, victim);
      killed = Clock::now();
      kill(pids[victim - 1], SIGKILL);
    });
    const absl::Status status = (*transport)->Barrier();
    const Clock::time_point noticed = Clock::now();
    killer.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr(absl::StrCat("rank ", victim, " left")));
    EXPECT_LT(noticed - killed, std::chrono::milliseconds(100));
    for (int rank = 1; rank < kSize; ++rank) {
      EXPECT_EQ(ExitCode(pids[rank - 1]), rank == victim ? -SIGKILL : 0);
    }
  }
}

TEST(ShmTransportTest, KillingRankZeroFailsTheOthers) {
  const pid_t host = StartRank(Options(0, 2), [](Transport& transport) {
    while (true) pause();
    return 0;
  });
  auto transport = ConnectShm(Options(1, 2));
  ASSERT_TRUE(transport.ok()) << transport.status();
  std::thread killer([&] {
    WaitUntilWaitingFor(**transport, 0);
    kill(host, SIGKILL);
  });
  EXPECT_EQ((*transport)->Barrier().code(), absl::StatusCode::kUnavailable);
  killer.join();
  EXPECT_EQ(ExitCode(host), -SIGKILL);
}

TEST(ShmTransportTest, WhatAKilledRankHadSentIsDelivered) {
  const pid_t sender = StartRank(Options(1, 2), [](Transport& transport) {
    const uint64_t value = 0x1234567890abcdef;
    if (!transport.Send(0, &value, sizeof(value)).ok()) return 1;
    kill(getpid(), SIGKILL);
    return 2;
  });
  auto transport = ConnectShm(Options(0, 2));
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_EQ(ExitCode(sender), -SIGKILL);
  uint64_t value = 0;
  EXPECT_TRUE((*transport)->Receive(1, &value, sizeof(value)).ok());
  EXPECT_EQ(value, 0x1234567890abcdef);
  EXPECT_EQ((*transport)->Receive(1, &value, sizeof(value)).code(), absl::StatusCode::kUnavailable);
}

TEST(ShmTransportTest, NothingIsLeftBehindAfterAKill) {
  const int shm_before = NumEntries("/dev/shm");
  const int fds_before = NumEntries("/proc/self/fd");
  const int threads_before = NumEntries("/proc/self/task");
  const pid_t peer = StartRank(Options(1, 2), [](Transport& transport) {
    transport.Barrier().IgnoreError();
    while (true) pause();
    return 0;
  });
  auto transport = ConnectShm(Options(0, 2));
  ASSERT_TRUE(transport.ok()) << transport.status();
  ASSERT_TRUE((*transport)->Barrier().ok());
  EXPECT_THAT(UnixSockets(), Not(HasSubstr(Options(0, 2).nonce)));
  EXPECT_EQ(NumEntries("/dev/shm"), shm_before);
  kill(peer, SIGKILL);
  EXPECT_EQ(ExitCode(peer), -SIGKILL);
  transport->reset();
  EXPECT_EQ(NumEntries("/dev/shm"), shm_before);
  EXPECT_EQ(NumEntries("/proc/self/fd"), fds_before);
  EXPECT_EQ(NumEntries("/proc/self/task"), threads_before);
}

TEST(ShmTransportTest, AGroupOfOneNeedsNobody) {
  auto transport = ConnectShm(Options(0, 1));
  ASSERT_TRUE(transport.ok()) << transport.status();
  uint32_t mine = 7, all = 0;
  EXPECT_TRUE((*transport)->AllGather(&mine, sizeof(mine), &all).ok());
  EXPECT_EQ(all, 7u);
  EXPECT_TRUE((*transport)->Barrier().ok());
}

TEST(ShmRendezvousTest, MissingRanksAreNamedByRankZeroAndToldToTheOthers) {
  ShmOptions host = Options(0, 4);
  host.connect_timeout = absl::Milliseconds(500);
  absl::Status guest_status;
  std::thread guest([&] { guest_status = ConnectShm(Options(2, 4)).status(); });
  const absl::Status status = ConnectShm(host).status();
  guest.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(MessageOf(status), HasSubstr("rank 1, 3 of 4 did not come"));
  EXPECT_EQ(guest_status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(MessageOf(guest_status), HasSubstr("rank 1, 3 of 4 did not come"));
}

TEST(ShmRendezvousTest, AMissingRankZeroIsNamed) {
  ShmOptions options = Options(1, 2);
  options.connect_timeout = absl::Milliseconds(50);
  const absl::Status status = ConnectShm(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("rank 1 of 2, waiting for rank 0"),
                                       HasSubstr(options.nonce), HasSubstr("50ms")));
}

TEST(ShmRendezvousTest, RanksThatDisagreeAreToldSo) {
  for (size_t ShmOptions::*const slots :
       {&ShmOptions::slot_bytes, &ShmOptions::message_slot_bytes}) {
    ShmOptions other = Options(1, 2);
    other.*slots = 8192;
    absl::Status guest_status;
    std::thread guest([&] { guest_status = ConnectShm(other).status(); });
    const absl::Status status = ConnectShm(Options(0, 2)).status();
    guest.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("8192"), HasSubstr("4096")));
    EXPECT_EQ(guest_status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(MessageOf(guest_status), HasSubstr("8192"));
  }
}

TEST(ShmRendezvousTest, TwoProcessesOfOneRankAreRefused) {
  std::vector<absl::Status> statuses(3);
  std::vector<std::thread> guests;
  for (int i = 1; i < 3; ++i) {
    guests.emplace_back([&statuses, i] { statuses[i] = ConnectShm(Options(1, 3)).status(); });
  }
  statuses[0] = ConnectShm(Options(0, 3)).status();
  for (std::thread& guest : guests) guest.join();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("two processes say that they are rank 1"));
  }
}

// Somebody who connects and talks nonsense, or leaves at once, does not count.
TEST(ShmRendezvousTest, StrangersAreSentAway) {
  absl::StatusOr<std::unique_ptr<Transport>> host, guest;
  std::thread host_thread([&] { host = ConnectShm(Options(0, 2)); });
  const std::string name = absl::StrCat("shoal-shm-", Options(0, 2).nonce);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const socklen_t bytes = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  for (int stranger = 0; stranger < 2; ++stranger) {
    base::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    while (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0) {
      ASSERT_EQ(errno, ECONNREFUSED);  // the host does not listen yet
      std::this_thread::yield();
    }
    if (stranger == 0) send(fd.get(), "hi", 2, MSG_NOSIGNAL);
  }
  guest = ConnectShm(Options(1, 2));
  host_thread.join();
  EXPECT_TRUE(host.ok()) << host.status();
  EXPECT_TRUE(guest.ok()) << guest.status();
}

// What a rank of another user would do: all is right but the user.
TEST(ShmRendezvousTest, ProcessesOfOtherUsersAreSentAway) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  const ShmOptions options = Options(1, 2);  // named after this process
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setuid(kOtherUser) != 0) _exit(1);
    const Deadline deadline(absl::Seconds(30));
    auto socket = ConnectTo(ShmSocketName(options.nonce), deadline);
    while (absl::IsUnavailable(socket.status())) {  // the host does not listen yet
      std::this_thread::yield();
      socket = ConnectTo(ShmSocketName(options.nonce), deadline);
    }
    ShmHello hello;
    hello.rank = 1;
    hello.size = 2;
    hello.slot_bytes = options.slot_bytes;
    hello.message_slot_bytes = options.message_slot_bytes;
    if (!socket.ok()) _exit(2);
    if (!SendHello(*socket, hello).ok()) _exit(0);  // it was sent away before it could say so
    _exit(ReceiveReply(*socket, 3, deadline).ok() ? 3 : 0);
  }
  absl::StatusOr<std::unique_ptr<Transport>> host;
  std::thread host_thread([&] { host = ConnectShm(Options(0, 2)); });
  EXPECT_EQ(ExitCode(stranger), 0);
  const auto guest = ConnectShm(options);
  host_thread.join();
  EXPECT_TRUE(host.ok()) << host.status();
  EXPECT_TRUE(guest.ok()) << guest.status();
}

TEST(ShmRendezvousTest, AHostOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  ShmOptions options = Options(0, 2);
  options.connect_timeout = absl::Seconds(2);
  const pid_t stranger = fork();
  if (stranger == 0) {
    _exit(setuid(kOtherUser) == 0 && !ConnectShm(options).ok() ? 0 : 1);
  }
  const auto guest = ConnectShm(Options(1, 2));
  EXPECT_EQ(guest.status().code(), absl::StatusCode::kPermissionDenied) << guest.status();
  EXPECT_THAT(MessageOf(guest.status()), HasSubstr(absl::StrCat("of user ", kOtherUser)));
  kill(stranger, SIGKILL);
  ExitCode(stranger);
}

TEST(ShmRendezvousTest, ANonceInUseIsRefusedAndTheFirstGroupGoesOn) {
  absl::StatusOr<std::unique_ptr<Transport>> first;
  std::thread host([&] { first = ConnectShm(Options(0, 2)); });
  while (UnixSockets().find(Options(0, 2).nonce) == std::string::npos) std::this_thread::yield();
  const absl::Status status = ConnectShm(Options(0, 2)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("fresh nonce"));
  auto guest = ConnectShm(Options(1, 2));
  host.join();
  EXPECT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(guest.ok()) << guest.status();
}

// Rank 0 waits for guests, rank 1 for its host.
TEST(ShmRendezvousTest, AnotherThreadEndsTheWait) {
  for (const int rank : {0, 1}) {
    CancelEvent cancel;
    ShmOptions options = Options(rank, 2);
    options.connect_timeout = absl::Seconds(60);
    options.cancel_fd = cancel.fd();
    std::thread canceller([&] { cancel.Cancel(); });
    const absl::Status status = ConnectShm(options).status();
    canceller.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  }
}

TEST(ShmRendezvousTest, RefusesImpossibleOptions) {
  const auto code = [](const std::function<void(ShmOptions&)>& edit) {
    ShmOptions options = Options(0, 2);
    edit(options);
    return ConnectShm(options).status().code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](ShmOptions& o) { o.nonce = ""; }), kInvalid);
  EXPECT_EQ(code([](ShmOptions& o) { o.nonce = std::string(81, 'x'); }), kInvalid);
  EXPECT_EQ(code([](ShmOptions& o) { o.nonce = "a/b"; }), kInvalid);
  EXPECT_EQ(code([](ShmOptions& o) { o.rank = 2; }), kInvalid);
  EXPECT_EQ(code([](ShmOptions& o) { o.rank = -1; }), kInvalid);
  EXPECT_EQ(code([](ShmOptions& o) { o.size = 17; }), kInvalid);
  EXPECT_EQ(code([](ShmOptions& o) { o.slot_bytes = 100; }), kInvalid);
  EXPECT_EQ(code([](ShmOptions& o) { o.slot_bytes = 0; }), kInvalid);
}

}  // namespace
}  // namespace shoal::parallel
