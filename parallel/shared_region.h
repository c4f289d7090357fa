#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/transport.h"

namespace shoal::parallel {

// What a writer says about the piece in a slot, so that a reader notices a disagreement.
struct PieceHeader {
  uint64_t sequence = 0;   // number of the round, or of the piece in its message
  uint64_t agreement = 0;  // hash of operation and sizes, or the size of the message: must be equal
  uint64_t bytes = 0;      // of the writer's whole block
};

// One rank's part in collectives, and the bell it sleeps on. Each line has one kind of writer.
struct RankCell {
  alignas(64) std::atomic<uint64_t> published{0};  // rounds written by this rank
  PieceHeader headers[2];                          // of rounds published and published - 1
  alignas(64) std::atomic<uint32_t> bell{0};       // futex: counts reasons to look again
  std::atomic<uint32_t> sleeping{0};               // 1: ring the bell after a change
  std::atomic<uint32_t> gone{0};                   // 1: this rank left or died
};

// Messages from one rank to another: a ring of two pieces.
struct Channel {
  alignas(64) std::atomic<uint64_t> written{0};  // pieces, by the sender
  PieceHeader headers[2];
  alignas(64) std::atomic<uint64_t> read{0};  // pieces, by the receiver
};

struct RegionShape {
  int size = 0;
  size_t slot_bytes = 0;          // of a piece of a collective
  size_t message_slot_bytes = 0;  // of a piece of a message
};

// The memory that the ranks of a group share. A view: it does not own the memory.
//
// clang-format off
//   +--------+---------------+----------------------+--------------+--------------------------+
//   | Header | RankCell [16] | Channel [src 16][16] | gather slots | message slots            |
//   |        |               |                      | [size][2]    | [src size][dst size][2]  |
//   +--------+---------------+----------------------+--------------+--------------------------+
//   0                                               ^ page border    each: message_slot_bytes
// clang-format on
//
// Two gather slots a rank are enough: to write round s + 2 into the slot of round s, a rank has
// seen all ranks publish s + 1, which they do after they have read round s.
//
// Waking: who changes a counter stores it and then reads `sleeping` of the reader; who waits
// stores `sleeping` and then reads the counter, all sequentially consistent, so one of the two
// sees the other.
class SharedRegion {
 public:
  SharedRegion() = default;

  // INVALID_ARGUMENT unless 1 <= size <= Transport::kMaxRanks and slots are multiples of 64 bytes
  // up to kMaxSlotBytes.
  static absl::Status CheckShape(const RegionShape& shape);
  static constexpr size_t kMaxSlotBytes = size_t{64} << 20;

  static size_t NumBytes(const RegionShape& shape);
  // The part that every collective touches: worth allocating at once. The message slots follow.
  static size_t NumCollectiveBytes(const RegionShape& shape);

  // Makes a region of zeroed memory of NumBytes, aligned to a page.
  static SharedRegion Create(void* memory, const RegionShape& shape);
  // The view of another process. FAILED_PRECONDITION when the memory is no such region.
  static absl::StatusOr<SharedRegion> Attach(void* memory, const RegionShape& shape);

  int size() const { return shape_.size; }
  size_t slot_bytes() const { return shape_.slot_bytes; }
  size_t message_slot_bytes() const { return shape_.message_slot_bytes; }
  RankCell& cell(int rank) const;
  Channel& channel(int source, int destination) const;
  std::byte* gather_slot(int rank, uint64_t round) const;
  std::byte* message_slot(int source, int destination, uint64_t piece) const;

  // Makes `rank` look again, whether it sleeps or is about to.
  void Ring(int rank) const;
  void RingIfSleeping(int rank) const;
  void RingAll() const;

  // Marks a rank as left; whoever waits for it wakes.
  void MarkGone(int rank) const;

  // The first call counts. Rings all bells.
  void Abort(const absl::Status& why) const;
  bool aborted() const;
  absl::Status abort_reason() const;  // REQUIRES: aborted()

 private:
  struct Header;

  SharedRegion(Header* header, const RegionShape& shape);

  Header* header_ = nullptr;
  RegionShape shape_;
};

}  // namespace shoal::parallel
