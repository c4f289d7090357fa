#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shoal::parallel {

// Where a rank stands in its collectives, for Inspect.
struct WaitInfo {
  uint64_t operations = 0;  // begun so far, the running one included
  int waiting_for = -1;     // the rank whose data or buffer space is awaited; -1: not waiting
};

// Bytes between the ranks of one group: the shards of a stage, or a shard's ranks of all stages.
// Moves bytes only: sums are JoinTree's. One Transport a rank and epoch; it dies with the epoch.
//
// Thread: one thread at a time calls the blocking operations. Abort and wait_info may be called
// from any thread until the destructor runs.
//
// Order: every rank calls the same sequence of collectives with the same sizes. Between two ranks
// messages arrive in the order they were sent. Send may return before the peer has called Receive,
// or wait for it: a cycle of Sends with no Receive is a bug of the caller.
//
// Errors: every wait ends by the operation's deadline (DEADLINE_EXCEEDED), when the awaited rank
// left or died (UNAVAILABLE), or by an Abort; sizes or operations that disagree are
// FAILED_PRECONDITION. The first error kills the transport: it wakes all waits on all ranks, every
// later call on this rank returns the same error, and every other rank gets an error from the
// operation that it is in, or else from its next one. Complete data is delivered: a peer that
// leaves after its last operation breaks nobody who still has to read it.
class Transport {
 public:
  static constexpr int kMaxRanks = 16;

  virtual ~Transport() = default;

  virtual absl::string_view name() const = 0;  // "local", "shm"
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // all = the blocks of all ranks in rank order; block r has bytes[r] bytes, and `mine` is the
  // block of this rank. `mine` lies outside `all`, or is exactly its own place in it.
  // REQUIRES: bytes.size() == size().
  virtual absl::Status AllGatherV(const void* mine, absl::Span<const size_t> bytes, void* all) = 0;

  // The same with equal blocks: `all` has size() * bytes bytes.
  absl::Status AllGather(const void* mine, size_t bytes, void* all);

  // REQUIRES: peer is another rank of the group. The receiver says how many bytes it expects.
  virtual absl::Status Send(int peer, const void* data, size_t bytes) = 0;
  virtual absl::Status Receive(int peer, void* data, size_t bytes) = 0;

  // Returns once every rank has called it.
  virtual absl::Status Barrier() = 0;

  // Makes every operation that cannot complete, on every rank, return `why` (its message may be
  // cut). Only the first Abort of a group counts. REQUIRES: !why.ok().
  virtual void Abort(const absl::Status& why) = 0;

  virtual WaitInfo wait_info() const = 0;
};

}  // namespace shoal::parallel
