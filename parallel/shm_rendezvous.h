#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "parallel/shm_transport.h"

namespace shoal::parallel {

// What a rank takes away from the rendezvous.
struct ShmMembership {
  base::UniqueFd memory;              // the group's memfd
  base::UniqueFd lifeline;            // write end of this rank's pipe: no other process has it
  std::vector<base::UniqueFd> peers;  // read ends of the others' pipes, by rank; none for this rank
};

// The rendezvous of ConnectShm over the abstract unix socket of the nonce:
//
//   rank 0                                        rank i
//   bind, listen                                  connect, again while nobody listens
//   check that the peer has our uid      <-       Hello {version, rank, size, slots}
//   when all came: Reply {OK} + fds      ->       check that the host has our uid
//          or: Reply {code, message}     ->       the same error on all ranks
//
// The fds are the memory, the write end of rank i's pipe and the read ends of all other pipes.
// Rank 0 then closes the write ends that it gave away, so a pipe ends when its rank does.

// Rank 0's side. `memory` is formatted already.
absl::StatusOr<ShmMembership> HostRendezvous(const ShmOptions& options, base::UniqueFd memory);

// Every other rank's side.
absl::StatusOr<ShmMembership> JoinRendezvous(const ShmOptions& options);

}  // namespace shoal::parallel
