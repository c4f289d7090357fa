#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"
#include "parallel/transport.h"

namespace shoal::parallel {

// The messages and sockets of the rendezvous (shm_rendezvous.h). All sockets are SOCK_SEQPACKET:
// a message arrives whole or not at all.

inline constexpr uint32_t kShmVersion = 2;

struct ShmHello {
  uint32_t version = kShmVersion;
  int32_t rank = 0;
  int32_t size = 0;
  uint64_t slot_bytes = 0;
  uint64_t message_slot_bytes = 0;
};

struct ShmReply {
  uint32_t version = kShmVersion;
  int32_t code = 0;  // an absl::StatusCode; 0: the fds come along
  uint32_t message_bytes = 0;
  char message[400] = {};
};

// How long a rendezvous may wait: until a moment, or until a descriptor (of a CancelEvent) becomes
// readable, whichever is first.
class Deadline {
 public:
  explicit Deadline(absl::Duration timeout, int cancel_fd = -1)
      : end_(std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout)),
        cancel_fd_(cancel_fd) {}
  // Rounded up to a millisecond, for poll(); 0 when it has passed.
  int remaining_ms() const;
  bool passed() const { return remaining_ms() == 0; }

  // Waits for `events` of `fd` (-1: for none of them), at most `max_ms`. DEADLINE_EXCEEDED when the
  // moment or max_ms has passed, CANCELLED.
  absl::Status Await(int fd, short events, int max_ms = 1 << 30) const;

 private:
  std::chrono::steady_clock::time_point end_;
  int cancel_fd_;
};

// "shoal-shm-NONCE", for messages.
std::string ShmSocketName(absl::string_view nonce);

// ALREADY_EXISTS when the name is taken.
absl::StatusOr<base::UniqueFd> ListenOn(absl::string_view name, int backlog);
// UNAVAILABLE while nobody listens.
absl::StatusOr<base::UniqueFd> ConnectTo(absl::string_view name, const Deadline& deadline);
// DEADLINE_EXCEEDED when nobody came.
absl::StatusOr<base::UniqueFd> AcceptFrom(const base::UniqueFd& listener, const Deadline& deadline);

// PERMISSION_DENIED unless the process at the other end runs as our user.
absl::Status CheckPeerUser(const base::UniqueFd& socket);

absl::Status SendHello(const base::UniqueFd& socket, const ShmHello& hello);
absl::StatusOr<ShmHello> ReceiveHello(const base::UniqueFd& socket, const Deadline& deadline);

absl::Status SendReply(const base::UniqueFd& socket, const ShmReply& reply,
                       absl::Span<const int> fds);
// The fds that came along, exactly num_fds; or the error that the reply carries. `reply` errors
// keep their code; a host that closed is UNAVAILABLE, one that is silent DEADLINE_EXCEEDED.
absl::StatusOr<std::vector<base::UniqueFd>> ReceiveReply(const base::UniqueFd& socket,
                                                         size_t num_fds, const Deadline& deadline);

ShmReply ReplyWith(const absl::Status& status);

}  // namespace shoal::parallel
