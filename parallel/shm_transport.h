#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "parallel/transport.h"

namespace shoal::parallel {

struct ShmOptions {
  // Names the group in this epoch: random, the same on all its ranks, used once. 1 to 80 letters,
  // digits, '-', '_' or '.'.
  std::string nonce;
  int rank = 0;
  int size = 1;
  absl::Duration connect_timeout = absl::Seconds(10);  // until all ranks are there
  int cancel_fd = -1;  // ends the wait for the other ranks early: a CancelEvent's, borrowed
  absl::Duration op_timeout = absl::Seconds(5);  // of one operation
  // Of a piece; the same on all ranks; multiples of 64. A Send of at most two pieces waits for
  // nobody, and message slots take no memory before they are used.
  size_t slot_bytes = 256 << 10;
  size_t message_slot_bytes = 256 << 10;
  bool allow_spin = false;  // true only when every rank has cores to itself
};

// Joins the ranks of one host, processes of one user, by shared memory. Blocks until all ranks
// called it. Leaves nothing behind when any rank is killed at any moment: the memory is a memfd,
// the rendezvous an abstract socket.
//
// One thread of the transport sleeps on the peers' lifelines; when a peer dies, whoever waits for
// it wakes at once. A process that forks without exec keeps the lifeline of its ranks open.
//
// Errors: INVALID_ARGUMENT (options), DEADLINE_EXCEEDED (names the ranks that did not come),
// CANCELLED (by cancel_fd), PERMISSION_DENIED (another user has the nonce), FAILED_PRECONDITION
// (ranks disagree on size, slots or version, or two are the same rank), UNAVAILABLE (rank 0 went
// away).
absl::StatusOr<std::unique_ptr<Transport>> ConnectShm(const ShmOptions& options);

}  // namespace shoal::parallel
