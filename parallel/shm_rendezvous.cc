#include "parallel/shm_rendezvous.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "parallel/shm_socket.h"

namespace shoal::parallel {
namespace {

constexpr int kRetryMs = 2;            // between attempts to connect, until rank 0 listens
constexpr int kHelloTimeoutMs = 1000;  // a connection that says nothing is no rank

struct Pipe {
  base::UniqueFd read_end;
  base::UniqueFd write_end;
};

absl::StatusOr<std::vector<Pipe>> NewPipes(int count) {
  std::vector<Pipe> pipes(count);
  for (Pipe& pipe : pipes) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) {
      return absl::ErrnoToStatus(errno, "pipe between ranks");
    }
    pipe.read_end = base::UniqueFd(fds[0]);
    pipe.write_end = base::UniqueFd(fds[1]);
  }
  return pipes;
}

std::string MissingRanks(const std::vector<base::UniqueFd>& guests) {
  std::vector<int> missing;
  for (size_t rank = 1; rank < guests.size(); ++rank) {
    if (!guests[rank].valid()) missing.push_back(static_cast<int>(rank));
  }
  return absl::StrJoin(missing, ", ");
}

absl::Status CheckHello(const ShmOptions& options, const ShmHello& hello,
                        const std::vector<base::UniqueFd>& guests) {
  if (hello.version != kShmVersion) {
    return absl::FailedPreconditionError(absl::StrCat("a rank speaks version ", hello.version,
                                                      ", rank 0 version ", kShmVersion,
                                                      "; update all ranks"));
  }
  if (hello.size != options.size || hello.slot_bytes != options.slot_bytes ||
      hello.message_slot_bytes != options.message_slot_bytes || hello.rank < 1 ||
      hello.rank >= options.size) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", hello.rank, " expects ", hello.size, " ranks and slots of ",
                     hello.slot_bytes, " and ", hello.message_slot_bytes, " bytes, rank 0 expects ",
                     options.size, ", ", options.slot_bytes, " and ", options.message_slot_bytes,
                     "; give all ranks the same options"));
  }
  if (guests[hello.rank].valid()) {
    return absl::FailedPreconditionError(absl::StrCat("two processes say that they are rank ",
                                                      hello.rank, " of ", options.size,
                                                      "; give each rank its own number"));
  }
  return absl::OkStatus();
}

// Takes connections until every rank is there. Strangers are sent away.
absl::Status AwaitGuests(const ShmOptions& options, const base::UniqueFd& listener,
                         const Deadline& deadline, std::vector<base::UniqueFd>* guests) {
  for (int num_guests = 0; num_guests < options.size - 1;) {
    absl::StatusOr<base::UniqueFd> guest = AcceptFrom(listener, deadline);
    if (absl::IsDeadlineExceeded(guest.status())) {
      return absl::DeadlineExceededError(absl::StrCat(
          "rank ", MissingRanks(*guests), " of ", options.size, " did not come to abstract socket ",
          ShmSocketName(options.nonce), " within ", absl::FormatDuration(options.connect_timeout),
          "; see whether it started, with the same nonce and on this host"));
    }
    SHOAL_RETURN_IF_ERROR(guest.status());
    if (!CheckPeerUser(*guest).ok()) continue;
    const int hello_ms = std::min(kHelloTimeoutMs, deadline.remaining_ms());
    const absl::StatusOr<ShmHello> hello =
        ReceiveHello(*guest, Deadline(absl::Milliseconds(hello_ms), options.cancel_fd));
    if (!hello.ok()) continue;
    if (absl::Status status = CheckHello(options, *hello, *guests); !status.ok()) {
      SendReply(*guest, ReplyWith(status), {}).IgnoreError();
      return status;
    }
    (*guests)[hello->rank] = *std::move(guest);
    ++num_guests;
  }
  return absl::OkStatus();
}

absl::Status Admit(const ShmOptions& options, const base::UniqueFd& memory,
                   const std::vector<Pipe>& pipes, const std::vector<base::UniqueFd>& guests) {
  for (int guest = 1; guest < options.size; ++guest) {
    std::vector<int> fds = {memory.get(), pipes[guest].write_end.get()};
    for (int rank = 0; rank < options.size; ++rank) {
      if (rank != guest) fds.push_back(pipes[rank].read_end.get());
    }
    if (!SendReply(guests[guest], ShmReply(), fds).ok()) {
      return absl::UnavailableError(
          absl::StrCat("rank ", guest, " of ", options.size, " left during the rendezvous"));
    }
  }
  return absl::OkStatus();
}

// No descriptor wakes us when a name is bound, so a guest that came first tries again.
absl::StatusOr<base::UniqueFd> ConnectToHost(const std::string& name, const Deadline& deadline) {
  while (true) {
    absl::StatusOr<base::UniqueFd> socket = ConnectTo(name, deadline);
    if (!absl::IsUnavailable(socket.status()) || deadline.passed()) return socket;
    const absl::Status status = deadline.Await(-1, 0, kRetryMs);
    if (absl::IsCancelled(status)) return status;
  }
}

}  // namespace

absl::StatusOr<ShmMembership> HostRendezvous(const ShmOptions& options, base::UniqueFd memory) {
  const Deadline deadline(options.connect_timeout, options.cancel_fd);
  SHOAL_ASSIGN_OR_RETURN(base::UniqueFd listener,
                         ListenOn(ShmSocketName(options.nonce), Transport::kMaxRanks));
  SHOAL_ASSIGN_OR_RETURN(std::vector<Pipe> pipes, NewPipes(options.size));
  std::vector<base::UniqueFd> guests(options.size);
  absl::Status status = AwaitGuests(options, listener, deadline, &guests);
  if (status.ok()) status = Admit(options, memory, pipes, guests);
  if (!status.ok()) {
    for (const base::UniqueFd& guest : guests) {
      if (guest.valid()) SendReply(guest, ReplyWith(status), {}).IgnoreError();
    }
    return status;
  }
  ShmMembership membership;
  membership.memory = std::move(memory);
  membership.lifeline = std::move(pipes[0].write_end);
  membership.peers.resize(options.size);
  for (int rank = 1; rank < options.size; ++rank) {
    membership.peers[rank] = std::move(pipes[rank].read_end);
  }
  return membership;
}

absl::StatusOr<ShmMembership> JoinRendezvous(const ShmOptions& options) {
  const Deadline deadline(options.connect_timeout, options.cancel_fd);
  const std::string name = ShmSocketName(options.nonce);
  const auto explain = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("rank ", options.rank, " of ", options.size,
                                                    ", waiting for rank 0 on abstract socket ",
                                                    name, ": ", status.message()));
  };
  absl::StatusOr<base::UniqueFd> socket = ConnectToHost(name, deadline);
  if (absl::IsUnavailable(socket.status())) {
    return explain(absl::DeadlineExceededError(
        absl::StrCat("nobody listened within ", absl::FormatDuration(options.connect_timeout),
                     "; see whether rank 0 started, with the same nonce and on this host")));
  }
  if (!socket.ok()) return explain(socket.status());
  if (absl::Status status = CheckPeerUser(*socket); !status.ok()) return explain(status);
  ShmHello hello;
  hello.rank = options.rank;
  hello.size = options.size;
  hello.slot_bytes = options.slot_bytes;
  hello.message_slot_bytes = options.message_slot_bytes;
  if (absl::Status status = SendHello(*socket, hello); !status.ok()) return explain(status);
  absl::StatusOr<std::vector<base::UniqueFd>> fds =
      ReceiveReply(*socket, options.size + 1, deadline);
  if (!fds.ok()) return explain(fds.status());

  ShmMembership membership;
  membership.memory = std::move((*fds)[0]);
  membership.lifeline = std::move((*fds)[1]);
  membership.peers.resize(options.size);
  size_t next = 2;
  for (int rank = 0; rank < options.size; ++rank) {
    if (rank != options.rank) membership.peers[rank] = std::move((*fds)[next++]);
  }
  return membership;
}

}  // namespace shoal::parallel
