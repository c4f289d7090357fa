#include "router/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/thread/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::router {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The connections that a listener brings.
class Connections {
 public:
  ~Connections() {
    for (const int fd : fds_) close(fd);
  }
  std::function<void(int)> Take() {
    return [this](int fd) {
      base::MutexLock lock(&mutex_);
      fds_.push_back(fd);
      changed_.SignalAll();
    };
  }
  void WaitFor(size_t count) {
    base::MutexLock lock(&mutex_);
    while (fds_.size() < count) changed_.Wait(&mutex_);
  }
  size_t count() {
    base::MutexLock lock(&mutex_);
    return fds_.size();
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<int> fds_ ABSL_GUARDED_BY(mutex_);
};

int PortOf(const Listener& listener) {
  int port = 0;
  EXPECT_TRUE(
      absl::SimpleAtoi(listener.address().substr(listener.address().rfind(':') + 1), &port));
  return port;
}

// A client's socket; -1 when there is no connection.
int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

int ConnectUnix(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0) return fd;
  close(fd);
  return -1;
}

// Lowers the limit of open files for the length of a test.
class FileLimit {
 public:
  explicit FileLimit(rlim_t files) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = files;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

std::unique_ptr<Listener> MustOpen(const std::string& address) {
  auto listener = Listener::Open(address);
  EXPECT_TRUE(listener.ok()) << listener.status();
  return listener.ok() ? *std::move(listener) : nullptr;
}

TEST(ListenerTest, BringsConnectionsAndTellsItsPort) {
  const auto listener = MustOpen("127.0.0.1:0");
  EXPECT_THAT(listener->address(), StartsWith("127.0.0.1:"));
  EXPECT_GT(PortOf(*listener), 0);
  Connections connections;
  listener->Start(connections.Take());
  const int client = Connect(PortOf(*listener));
  EXPECT_GE(client, 0);
  connections.WaitFor(1);
  close(client);
  listener->Stop();
  EXPECT_EQ(Connect(PortOf(*listener)), -1) << "refused once stopped";
}

TEST(ListenerTest, RefusesAddressesThatCannotBe) {
  for (const char* address :
       {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:65536", "127.0.0.1:-1",
        "127.0.0.1:+1", "127.0.0.1:8x", ":8500", "::1:8500", "unix:", "unix-abstract:", "[::1]"}) {
    EXPECT_EQ(Listener::CheckAddress(address).code(), absl::StatusCode::kInvalidArgument)
        << address;
    EXPECT_THAT(std::string(Listener::CheckAddress(address).message()), HasSubstr(address));
  }
  EXPECT_FALSE(Listener::CheckAddress(absl::StrCat("unix:/", std::string(107, 'a'))).ok());
  for (const char* address : {"127.0.0.1:0", "localhost:65535", "[::]:1", "0.0.0.0:8500",
                              "unix:/tmp/a", "unix:///tmp/a", "unix-abstract:abc"}) {
    EXPECT_TRUE(Listener::CheckAddress(address).ok()) << address;
  }
}

TEST(ListenerTest, ATakenPortIsUnavailable) {
  const auto first = MustOpen("127.0.0.1:0");
  const auto second = Listener::Open(first->address());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(first->address()));
}

TEST(ListenerTest, ListensOnAnAbstractSocket) {
  const std::string name = absl::StrCat("shoal-listener-test-", getpid());
  const auto listener = MustOpen(absl::StrCat("unix-abstract:", name));
  EXPECT_THAT(listener->address(), EndsWith(name));
  Connections connections;
  listener->Start(connections.Take());
  const int client = ConnectUnix(std::string(1, '\0') + name);
  EXPECT_GE(client, 0);
  connections.WaitFor(1);
  close(client);
  listener->Stop();
}

TEST(ListenerTest, TakesOverAStaleSocketFileButNoLiveOne) {
  char folder[] = "/tmp/listener_test_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = absl::StrCat(folder, "/s");
  const std::string address = absl::StrCat("unix:", path);
  {
    const int stale = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    memcpy(name.sun_path, path.data(), path.size());
    ASSERT_EQ(bind(stale, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
    close(stale);  // leaves the file
  }
  const auto listener = MustOpen(address);
  ASSERT_NE(listener, nullptr);
  EXPECT_EQ(Listener::Open(address).status().code(), absl::StatusCode::kUnavailable);
  Connections connections;
  listener->Start(connections.Take());
  const int client = ConnectUnix(path);
  EXPECT_GE(client, 0);
  close(client);
  listener->Stop();
  struct stat info;
  EXPECT_NE(stat(path.c_str(), &info), 0) << "the file is gone";
  rmdir(folder);
}

TEST(ListenerTest, KeepsDescriptorsForOthersAndClosesWhatIsTooMany) {
  const FileLimit limit(100);  // of which 25 are kept
  const auto listener = MustOpen("127.0.0.1:0");
  Connections connections;
  listener->Start(connections.Take());
  // Each connection takes two here, so most of these cannot be taken.
  std::vector<int> clients;
  bool was_closed = false;
  while (!was_closed) {
    const size_t before = connections.count();
    clients.push_back(Connect(PortOf(*listener)));
    ASSERT_GE(clients.back(), 0);
    char byte;
    // A connection that is kept sends nothing, one that is closed ends.
    while (connections.count() == before && !was_closed) {
      was_closed = recv(clients.back(), &byte, 1, MSG_DONTWAIT) == 0;
    }
    ASSERT_LT(clients.size(), 50u);
  }
  const int free_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_GE(free_fd, 0) << "others find descriptors";
  close(free_fd);
  for (const int client : clients) close(client);
  listener->Stop();
}

TEST(ListenerTest, WhatOneListenerSparesAnotherTakes) {
  const FileLimit limit(100);  // of which 25 are kept, and 12 spared
  const auto clients_listener = *Listener::Open("127.0.0.1:0", 32);
  const auto operators_listener = MustOpen("127.0.0.1:0");
  Connections connections;
  Connections operators;
  clients_listener->Start(connections.Take());
  operators_listener->Start(operators.Take());
  std::vector<int> clients;
  bool was_closed = false;
  while (!was_closed) {
    const size_t before = connections.count();
    clients.push_back(Connect(PortOf(*clients_listener)));
    ASSERT_GE(clients.back(), 0);
    char byte;
    while (connections.count() == before && !was_closed) {
      was_closed = recv(clients.back(), &byte, 1, MSG_DONTWAIT) == 0;
    }
    ASSERT_LT(clients.size(), 50u);
  }
  clients.push_back(Connect(PortOf(*operators_listener)));
  operators.WaitFor(1);
  for (const int client : clients) close(client);
  clients_listener->Stop();
  operators_listener->Stop();
}

TEST(ListenerTest, ANameOfBothFamiliesIsBoundToIpv4) {
  addrinfo hints = {};
  hints.ai_family = AF_INET6;
  addrinfo* found = nullptr;
  if (getaddrinfo("localhost", nullptr, &hints, &found) != 0) {
    GTEST_SKIP() << "localhost has no IPv6 address here";
  }
  freeaddrinfo(found);
  const auto listener = MustOpen("localhost:0");
  const int client = Connect(PortOf(*listener));  // 127.0.0.1
  EXPECT_GE(client, 0);
  close(client);
}

TEST(ListenerTest, AcceptsAgainAfterItHadNoDescriptors) {
  const auto listener = MustOpen("127.0.0.1:0");
  Connections connections;
  std::vector<int> clients;
  {
    // The connection comes when the process has no descriptor left.
    const int client = Connect(PortOf(*listener));
    ASSERT_GE(client, 0);
    clients.push_back(client);
    const FileLimit limit(static_cast<rlim_t>(client) + 1);
    listener->Start(connections.Take());
    EXPECT_EQ(dup(0), -1);
    base::Mutex mutex;
    base::CondVar never;
    base::MutexLock lock(&mutex);
    never.WaitFor(&mutex, absl::Milliseconds(50));
    EXPECT_EQ(connections.count(), 0u);
  }
  connections.WaitFor(1);
  clients.push_back(Connect(PortOf(*listener)));
  connections.WaitFor(2);
  for (const int client : clients) close(client);
  listener->Stop();
}

}  // namespace
}  // namespace shoal::router
