#include "parallel/shared_region.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "parallel/futex.h"

namespace shoal::parallel {
namespace {

constexpr uint64_t kMagic = 0x53484f414c303031;  // "SHOAL001"
constexpr size_t kPage = 4096;
constexpr size_t kMaxAbortMessage = 400;

enum AbortState : uint32_t { kRunning = 0, kAborting = 1, kAborted = 2 };

static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace

struct SharedRegion::Header {
  uint64_t magic = kMagic;
  uint64_t size = 0;
  uint64_t slot_bytes = 0;
  uint64_t message_slot_bytes = 0;
  // The reason is written between kAborting and kAborted; of a rank killed just there the others
  // see the death instead.
  std::atomic<uint32_t> abort_state{kRunning};
  int32_t abort_code = 0;
  uint32_t abort_message_bytes = 0;
  char abort_message[kMaxAbortMessage] = {};
  RankCell cells[Transport::kMaxRanks];
  Channel channels[Transport::kMaxRanks][Transport::kMaxRanks];

  static constexpr size_t PaddedBytes() { return (sizeof(Header) + kPage - 1) / kPage * kPage; }
};

SharedRegion::SharedRegion(Header* header, const RegionShape& shape)
    : header_(header), shape_(shape) {}

absl::Status SharedRegion::CheckShape(const RegionShape& shape) {
  if (shape.size < 1 || shape.size > Transport::kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("a transport of ", shape.size, " ranks: must be 1 to ", Transport::kMaxRanks));
  }
  for (const size_t bytes : {shape.slot_bytes, shape.message_slot_bytes}) {
    if (bytes > 0 && bytes % 64 == 0 && bytes <= kMaxSlotBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("slots of ", bytes, " bytes: must be a multiple of 64 up to ", kMaxSlotBytes));
  }
  return absl::OkStatus();
}

size_t SharedRegion::NumCollectiveBytes(const RegionShape& shape) {
  return Header::PaddedBytes() + size_t{2} * shape.size * shape.slot_bytes;
}

size_t SharedRegion::NumBytes(const RegionShape& shape) {
  return NumCollectiveBytes(shape) + size_t{2} * shape.size * shape.size * shape.message_slot_bytes;
}

SharedRegion SharedRegion::Create(void* memory, const RegionShape& shape) {
  CHECK(shape.size >= 1 && shape.size <= Transport::kMaxRanks) << shape.size;
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory) % alignof(Header), 0u);
  auto* header = new (memory) Header;
  header->size = shape.size;
  header->slot_bytes = shape.slot_bytes;
  header->message_slot_bytes = shape.message_slot_bytes;
  return SharedRegion(header, shape);
}

absl::StatusOr<SharedRegion> SharedRegion::Attach(void* memory, const RegionShape& shape) {
  auto* header = std::launder(reinterpret_cast<Header*>(memory));
  if (header->magic != kMagic || header->size != static_cast<uint64_t>(shape.size) ||
      header->slot_bytes != shape.slot_bytes ||
      header->message_slot_bytes != shape.message_slot_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "shared memory is for ", header->size, " ranks with slots of ", header->slot_bytes, " and ",
        header->message_slot_bytes, " bytes, expected ", shape.size, ", ", shape.slot_bytes,
        " and ", shape.message_slot_bytes, "; run the same version on all ranks"));
  }
  return SharedRegion(header, shape);
}

RankCell& SharedRegion::cell(int rank) const { return header_->cells[rank]; }

Channel& SharedRegion::channel(int source, int destination) const {
  return header_->channels[source][destination];
}

std::byte* SharedRegion::gather_slot(int rank, uint64_t round) const {
  const size_t index = size_t{2} * rank + (round & 1);
  return reinterpret_cast<std::byte*>(header_) + Header::PaddedBytes() + index * shape_.slot_bytes;
}

std::byte* SharedRegion::message_slot(int source, int destination, uint64_t piece) const {
  const size_t index = size_t{2} * (size_t(source) * shape_.size + destination) + (piece & 1);
  return reinterpret_cast<std::byte*>(header_) + NumCollectiveBytes(shape_) +
         index * shape_.message_slot_bytes;
}

void SharedRegion::Ring(int rank) const {
  RankCell& cell = header_->cells[rank];
  cell.bell.fetch_add(1);
  FutexWake(&cell.bell);
}

void SharedRegion::RingIfSleeping(int rank) const {
  if (header_->cells[rank].sleeping.load() != 0) Ring(rank);
}

void SharedRegion::RingAll() const {
  for (int rank = 0; rank < shape_.size; ++rank) Ring(rank);
}

void SharedRegion::MarkGone(int rank) const {
  header_->cells[rank].gone.store(1);
  RingAll();
}

void SharedRegion::Abort(const absl::Status& why) const {
  CHECK(!why.ok());
  uint32_t running = kRunning;
  if (!header_->abort_state.compare_exchange_strong(running, kAborting)) return;
  const absl::string_view message = why.message();
  const size_t bytes = std::min(message.size(), kMaxAbortMessage);
  header_->abort_code = static_cast<int32_t>(why.code());
  header_->abort_message_bytes = static_cast<uint32_t>(bytes);
  std::memcpy(header_->abort_message, message.data(), bytes);
  header_->abort_state.store(kAborted);
  RingAll();
}

bool SharedRegion::aborted() const { return header_->abort_state.load() == kAborted; }

absl::Status SharedRegion::abort_reason() const {
  const size_t bytes = std::min<size_t>(header_->abort_message_bytes, kMaxAbortMessage);
  return absl::Status(static_cast<absl::StatusCode>(header_->abort_code),
                      absl::string_view(header_->abort_message, bytes));
}

}  // namespace shoal::parallel
