#include "parallel/shm_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace shoal::parallel {
namespace {

constexpr size_t kMaxFds = Transport::kMaxRanks + 1;

struct Address {
  sockaddr_un un = {};
  socklen_t bytes = 0;
};

// An abstract address: a zero byte, then the name, without a terminator.
Address AbstractAddress(absl::string_view name) {
  Address address;
  address.un.sun_family = AF_UNIX;
  std::memcpy(address.un.sun_path + 1, name.data(), name.size());
  address.bytes = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  return address;
}

absl::StatusOr<base::UniqueFd> NewSocket() {
  base::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "unix socket between ranks");
  return fd;
}

// Room for the descriptors of one message.
struct FdBuffer {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
};

std::vector<base::UniqueFd> TakeFds(msghdr* message) {
  std::vector<base::UniqueFd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

int Deadline::remaining_ms() const {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

absl::Status Deadline::Await(int fd, short events, int max_ms) const {
  while (true) {
    pollfd polled[] = {{cancel_fd_, POLLIN, 0}, {fd, events, 0}};  // poll() skips negative ones
    const int rc = poll(polled, 2, std::min(max_ms, remaining_ms()));
    if (rc > 0 && polled[0].revents != 0) return absl::CancelledError("the wait was cancelled");
    if (rc > 0) return absl::OkStatus();
    if (rc == 0) return absl::DeadlineExceededError("no answer in time");
    if (errno != EINTR) return absl::ErrnoToStatus(errno, "poll");
  }
}

std::string ShmSocketName(absl::string_view nonce) { return absl::StrCat("shoal-shm-", nonce); }

absl::StatusOr<base::UniqueFd> ListenOn(absl::string_view name, int backlog) {
  SHOAL_ASSIGN_OR_RETURN(base::UniqueFd fd, NewSocket());
  const Address address = AbstractAddress(name);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.un), address.bytes) != 0) {
    const std::string what = absl::StrCat("binding abstract socket ", name);
    return errno == EADDRINUSE ? absl::AlreadyExistsError(absl::StrCat(
                                     what, ": in use; take a fresh nonce for every epoch"))
                               : absl::ErrnoToStatus(errno, what);
  }
  if (listen(fd.get(), backlog) != 0) return absl::ErrnoToStatus(errno, "listen");
  return fd;
}

absl::StatusOr<base::UniqueFd> ConnectTo(absl::string_view name, const Deadline& deadline) {
  SHOAL_ASSIGN_OR_RETURN(base::UniqueFd fd, NewSocket());
  const Address address = AbstractAddress(name);
  while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.un), address.bytes) != 0) {
    if (errno == EINTR && !deadline.passed()) continue;
    // EAGAIN: the backlog is full.
    if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) {
      return absl::UnavailableError(absl::StrCat("nobody listens on abstract socket ", name));
    }
    return absl::ErrnoToStatus(errno, absl::StrCat("connecting to abstract socket ", name));
  }
  return fd;
}

absl::StatusOr<base::UniqueFd> AcceptFrom(const base::UniqueFd& listener,
                                          const Deadline& deadline) {
  while (true) {
    SHOAL_RETURN_IF_ERROR(deadline.Await(listener.get(), POLLIN));
    base::UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) return fd;
    if (errno != EINTR && errno != EAGAIN && errno != ECONNABORTED) {
      return absl::ErrnoToStatus(errno, "accept");
    }
  }
}

absl::Status CheckPeerUser(const base::UniqueFd& socket) {
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return absl::ErrnoToStatus(errno, "SO_PEERCRED");
  }
  if (peer.uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat("process ", peer.pid, " of user ", peer.uid,
                                                    " is no rank of user ", geteuid(),
                                                    "; run all ranks of a group as one user"));
  }
  return absl::OkStatus();
}

absl::Status SendHello(const base::UniqueFd& socket, const ShmHello& hello) {
  if (send(socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    return absl::UnavailableError("the connection broke");
  }
  return absl::OkStatus();
}

absl::StatusOr<ShmHello> ReceiveHello(const base::UniqueFd& socket, const Deadline& deadline) {
  SHOAL_RETURN_IF_ERROR(deadline.Await(socket.get(), POLLIN));
  ShmHello hello;
  if (recv(socket.get(), &hello, sizeof(hello), 0) != sizeof(hello)) {
    return absl::UnavailableError("the peer left, or is no rank");
  }
  return hello;
}

ShmReply ReplyWith(const absl::Status& status) {
  ShmReply reply;
  reply.code = static_cast<int32_t>(status.code());
  const size_t bytes = std::min(status.message().size(), sizeof(reply.message));
  reply.message_bytes = static_cast<uint32_t>(bytes);
  std::memcpy(reply.message, status.message().data(), bytes);
  return reply;
}

absl::Status SendReply(const base::UniqueFd& socket, const ShmReply& reply,
                       absl::Span<const int> fds) {
  iovec data = {const_cast<ShmReply*>(&reply), sizeof(reply)};
  FdBuffer buffer;
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = buffer.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(control), fds.data(), fds.size() * sizeof(int));
  }
  if (sendmsg(socket.get(), &message, MSG_NOSIGNAL) != sizeof(reply)) {
    return absl::UnavailableError("the connection broke");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<base::UniqueFd>> ReceiveReply(const base::UniqueFd& socket,
                                                         size_t num_fds, const Deadline& deadline) {
  SHOAL_RETURN_IF_ERROR(deadline.Await(socket.get(), POLLIN));
  ShmReply reply;
  iovec data = {&reply, sizeof(reply)};
  FdBuffer buffer;
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = buffer.bytes;
  message.msg_controllen = sizeof(buffer.bytes);
  const ssize_t received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  std::vector<base::UniqueFd> fds = TakeFds(&message);
  if (received <= 0) return absl::UnavailableError("it went away");
  if (received != sizeof(reply) || reply.version != kShmVersion) {
    return absl::FailedPreconditionError("it speaks another version; update all ranks");
  }
  if (reply.code != 0) {
    const size_t bytes = std::min<size_t>(reply.message_bytes, sizeof(reply.message));
    return absl::Status(static_cast<absl::StatusCode>(reply.code),
                        absl::string_view(reply.message, bytes));
  }
  if (fds.size() != num_fds) {
    return absl::ResourceExhaustedError(
        absl::StrCat("got ", fds.size(), " of ", num_fds,
                     " descriptors; raise the limit of open files (ulimit -n)"));
  }
  return fds;
}

}  // namespace shoal::parallel
