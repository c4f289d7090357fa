#include "router/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace shoal::router {
namespace {

// Descriptors that connections must leave to files, ranks and the rest of the process.
constexpr int kReservedFiles = 64;
// Each connection costs memory, too.
constexpr int kMaxFiles = 1 << 16;
constexpr int kRetryMs = 100;
// A peer that acknowledges nothing for this long is gone.
constexpr int kTcpUserTimeoutMs = 10'000;

struct Address {
  bool is_unix = false;
  std::string path;  // of a unix socket; a leading NUL: abstract
  std::string host;
  std::string port;
};

absl::Status Invalid(const std::string& address, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("address \"", address, "\" ", why,
                                                 ": give HOST:PORT, [IPV6]:PORT, unix:PATH or "
                                                 "unix-abstract:NAME"));
}

absl::StatusOr<Address> ParseUnix(const std::string& address, std::string path, bool is_abstract) {
  if (path.empty()) return Invalid(address, "names no socket");
  if (is_abstract) path.insert(0, 1, '\0');
  constexpr size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kMaxPath) {
    return Invalid(address, absl::StrCat("has a name of ", path.size(), " bytes, at most ",
                                         kMaxPath, " are possible"));
  }
  return Address{.is_unix = true, .path = std::move(path), .host = {}, .port = {}};
}

absl::StatusOr<Address> ParseAddress(const std::string& address) {
  absl::string_view rest = address;
  if (absl::ConsumePrefix(&rest, "unix-abstract:")) {
    return ParseUnix(address, std::string(rest), /*is_abstract=*/true);
  }
  if (absl::ConsumePrefix(&rest, "unix:")) {
    absl::ConsumePrefix(&rest, "//");
    return ParseUnix(address, std::string(rest), /*is_abstract=*/false);
  }
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos) return Invalid(address, "has no port");
  absl::string_view host = rest.substr(0, colon);
  const absl::string_view port = rest.substr(colon + 1);
  int number = 0;
  const bool has_digits = !port.empty() && port.find_first_not_of("0123456789") == port.npos;
  if (!has_digits || !absl::SimpleAtoi(port, &number) || number > 65535) {
    return Invalid(address, absl::StrCat("has port \"", port, "\", which is not in 0..65535"));
  }
  const bool is_bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (is_bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) return Invalid(address, "has no host");
  if (!is_bracketed && host.find(':') != host.npos) {
    return Invalid(address, "has an IPv6 host without brackets");
  }
  return Address{
      .is_unix = false, .path = {}, .host = std::string(host), .port = std::string(port)};
}

absl::Status CannotListen(const std::string& address, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why,
                                             ": is the address free, and one of this machine?"));
}

absl::Status CannotListen(const std::string& address) {
  return CannotListen(address, strerror(errno));
}

// Listens on one socket address, and returns the descriptor, or -1 and errno.
int TryListen(int family, const sockaddr* address, socklen_t size) {
  const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  const int off = 0;
  if (family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(fd, address, size) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

// A socket that nobody listens on any more is in the way of a new one.
void RemoveStaleSocket(const sockaddr_un& address, socklen_t size) {
  struct stat info;
  if (lstat(address.sun_path, &info) != 0 || !S_ISSOCK(info.st_mode)) return;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const bool is_stale =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0 && errno == ECONNREFUSED;
  close(fd);
  if (is_stale) unlink(address.sun_path);
}

int ListenOnPath(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), address.sun_path);
  const bool is_abstract = path[0] == '\0';
  const socklen_t size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (is_abstract ? 0 : 1));
  if (!is_abstract) RemoveStaleSocket(address, size);
  return TryListen(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), size);
}

absl::StatusOr<int> ListenOnHost(const std::string& address, const Address& parsed) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(parsed.host.c_str(), parsed.port.c_str(), &hints, &found);
  if (error != 0) return CannotListen(address, gai_strerror(error));
  int fd = -1;
  // Clients try every address of a name; those that were given 127.0.0.1 have no other.
  for (const bool is_ipv4 : {true, false}) {
    for (const addrinfo* it = found; it != nullptr && fd < 0; it = it->ai_next) {
      if ((it->ai_family == AF_INET) != is_ipv4) continue;
      fd = TryListen(it->ai_family, it->ai_addr, it->ai_addrlen);
    }
  }
  const int listen_error = errno;
  freeaddrinfo(found);
  errno = listen_error;
  if (fd < 0) return CannotListen(address);
  return fd;
}

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  PCHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

// The kernel gives the lowest number that is free, so a connection's number bounds their count.
int MaxConnectionFd(int spared_files) {
  rlimit limit = {};
  PCHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const int files = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, kMaxFiles));
  return files - std::min(kReservedFiles, files / 4) - std::min(spared_files, files / 8) - 1;
}

}  // namespace

absl::Status Listener::CheckAddress(const std::string& address) {
  return ParseAddress(address).status();
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& address,
                                                         int spared_files) {
  SHOAL_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  if (parsed.is_unix) {
    const int fd = ListenOnPath(parsed.path);
    if (fd < 0) return CannotListen(address);
    const std::string path = parsed.path[0] == '\0' ? "" : parsed.path;
    return std::unique_ptr<Listener>(new Listener(address, path, fd, spared_files));
  }
  SHOAL_ASSIGN_OR_RETURN(const int fd, ListenOnHost(address, parsed));
  const std::string host = address.substr(0, address.rfind(':'));
  return std::unique_ptr<Listener>(
      new Listener(absl::StrCat(host, ":", PortOf(fd)), "", fd, spared_files));
}

Listener::Listener(std::string address, std::string unix_path, int fd, int spared_files)
    : address_(std::move(address)),
      unix_path_(std::move(unix_path)),
      fd_(fd),
      wake_fd_(eventfd(0, EFD_CLOEXEC)),
      max_fd_(MaxConnectionFd(spared_files)) {
  PCHECK(wake_fd_ >= 0);
}

void Listener::Start(std::function<void(int fd)> on_connection) {
  CHECK(!thread_.joinable()) << "started twice";
  on_connection_ = std::move(on_connection);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  if (fd_ < 0) return;
  const uint64_t one = 1;
  PCHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one));
  if (thread_.joinable()) thread_.join();
  if (!unix_path_.empty()) unlink(unix_path_.c_str());
  close(std::exchange(fd_, -1));
  close(std::exchange(wake_fd_, -1));
}

void Listener::Run() {
  while (true) {
    pollfd polled[2] = {{.fd = wake_fd_, .events = POLLIN, .revents = 0},
                        {.fd = fd_, .events = POLLIN, .revents = 0}};
    if (poll(polled, 2, -1) < 0) continue;  // a signal
    if (polled[0].revents != 0) return;
    AcceptOne();
  }
}

void Listener::AcceptOne() {
  const int fd = accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    // The client left before its turn.
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    PLOG_EVERY_N(WARNING, 100) << "cannot accept a connection at " << address_ << " now";
    // Without descriptors or memory the connection stays in the queue, and so would this loop.
    pollfd wake = {.fd = wake_fd_, .events = POLLIN, .revents = 0};
    poll(&wake, 1, kRetryMs);
    return;
  }
  if (fd > max_fd_) {
    LOG_EVERY_N(WARNING, 100) << "refused a connection at " << address_ << ": more than about "
                              << max_fd_ << " are open (raise the limit of open files)";
    close(fd);
    return;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // no effect on unix sockets
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kTcpUserTimeoutMs, sizeof(kTcpUserTimeoutMs));
  on_connection_(fd);
}

}  // namespace shoal::router
