#include "parallel/region_transport.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "parallel/futex.h"

namespace shoal::parallel {
namespace {

// A waiter spins up to twice the usual wait of such an operation, at least kMinSpin. Where that
// would be longer than kMaxSpin it is a pipeline bubble, or the cores are taken and the spinning
// itself makes the wait long: then it spins for kMinSpin only.
constexpr std::chrono::nanoseconds kMinSpin = std::chrono::microseconds(50);
constexpr std::chrono::nanoseconds kMaxSpin = std::chrono::milliseconds(1);
constexpr int kSpinsPerClockRead = 16;

// FNV-1a over whole words; only compared between ranks of one group.
uint64_t HashOf(uint64_t kind, absl::Span<const size_t> sizes) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](uint64_t word) { hash = (hash ^ word) * 0x100000001b3; };
  mix(kind);
  for (const size_t size : sizes) mix(size);
  return hash;
}

void CopyBytes(void* to, const void* from, size_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

// A block of `bytes` in pieces of `slot_bytes`.
size_t PieceBytes(size_t bytes, size_t offset, size_t slot_bytes) {
  return offset < bytes ? std::min(bytes - offset, slot_bytes) : 0;
}

absl::string_view NameOf(int kind) {
  static constexpr absl::string_view kNames[] = {"all-gather", "barrier", "send", "receive"};
  return kNames[kind];
}

}  // namespace

RegionTransport::RegionTransport(Options options, std::unique_ptr<RegionOwner> owner)
    : options_(std::move(options)), owner_(std::move(owner)), region_(owner_->region()) {}

RegionTransport::~RegionTransport() { region_.MarkGone(rank()); }

WaitInfo RegionTransport::wait_info() const {
  return {num_operations_.load(std::memory_order_relaxed),
          waiting_for_.load(std::memory_order_relaxed)};
}

absl::Status RegionTransport::AllGatherV(const void* mine, absl::Span<const size_t> bytes,
                                         void* all) {
  CHECK_EQ(bytes.size(), static_cast<size_t>(size()));
  SHOAL_RETURN_IF_ERROR(Begin(Kind::kAllGather, bytes[rank()]));
  return Gather(static_cast<const std::byte*>(mine), bytes, static_cast<std::byte*>(all));
}

absl::Status RegionTransport::Barrier() {
  SHOAL_RETURN_IF_ERROR(Begin(Kind::kBarrier, 0));
  static constexpr std::array<size_t, kMaxRanks> kNoBytes{};
  return Gather(nullptr, absl::MakeConstSpan(kNoBytes.data(), size()), nullptr);
}

absl::Status RegionTransport::Begin(Kind kind, size_t bytes) {
  if (!dead_.ok()) return dead_;
  num_operations_.fetch_add(1, std::memory_order_relaxed);
  operation_ = {kind, bytes, {}};
  if (region_.aborted()) return dead_ = region_.abort_reason();
  return absl::OkStatus();
}

absl::Status RegionTransport::Gather(const std::byte* mine, absl::Span<const size_t> bytes,
                                     std::byte* all) {
  const size_t slot_bytes = region_.slot_bytes();
  const size_t longest = *std::max_element(bytes.begin(), bytes.end());
  std::array<size_t, kMaxRanks> starts;  // of each rank's block in `all`
  size_t total = 0;
  for (int r = 0; r < size(); ++r) {
    starts[r] = total;
    total += bytes[r];
  }
  PieceHeader header;
  header.agreement = HashOf(static_cast<uint64_t>(operation_.kind), bytes);
  header.bytes = bytes[rank()];
  for (size_t offset = 0; offset == 0 || offset < longest; offset += slot_bytes) {
    header.sequence = ++round_;
    const size_t my_bytes = PieceBytes(bytes[rank()], offset, slot_bytes);
    const std::byte* my_piece = my_bytes == 0 ? nullptr : mine + offset;
    PublishRound(header, my_piece, my_bytes);
    if (my_bytes != 0) CopyBytes(all + starts[rank()] + offset, my_piece, my_bytes);
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank() + step) % size();  // not all ranks read the same slot at once
      SHOAL_RETURN_IF_ERROR(Await(region_.cell(peer).published, round_, peer));
      SHOAL_RETURN_IF_ERROR(CheckAgreement(peer, header));
      const size_t peer_bytes = PieceBytes(bytes[peer], offset, slot_bytes);
      if (peer_bytes != 0) {
        CopyBytes(all + starts[peer] + offset, region_.gather_slot(peer, round_), peer_bytes);
      }
    }
  }
  return absl::OkStatus();
}

void RegionTransport::PublishRound(const PieceHeader& header, const std::byte* piece,
                                   size_t bytes) {
  RankCell& cell = region_.cell(rank());
  CopyBytes(region_.gather_slot(rank(), round_), piece, bytes);
  cell.headers[round_ & 1] = header;
  cell.published.store(round_);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) region_.RingIfSleeping(peer);
  }
}

absl::Status RegionTransport::CheckAgreement(int peer, const PieceHeader& mine) {
  const PieceHeader& theirs = region_.cell(peer).headers[round_ & 1];
  if (theirs.sequence == mine.sequence && theirs.agreement == mine.agreement) {
    return absl::OkStatus();
  }
  return Fail(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat("rank ", peer, " is in another collective or passes other sizes (its ",
                   "own block has ", theirs.bytes, " bytes); every rank must make the same calls"));
}

absl::Status RegionTransport::Send(int peer, const void* data, size_t bytes) {
  CheckPeer(peer);
  SHOAL_RETURN_IF_ERROR(Begin(Kind::kSend, bytes));
  if (region_.cell(peer).gone.load() != 0) {
    return Fail(absl::StatusCode::kUnavailable, absl::StrCat("rank ", peer, " left"));
  }
  Channel& channel = region_.channel(rank(), peer);
  const size_t slot_bytes = region_.message_slot_bytes();
  uint64_t piece = channel.written.load(std::memory_order_relaxed);
  for (size_t offset = 0; offset == 0 || offset < bytes; offset += slot_bytes, ++piece) {
    if (piece >= 2) SHOAL_RETURN_IF_ERROR(Await(channel.read, piece - 1, peer));
    const size_t piece_bytes = PieceBytes(bytes, offset, slot_bytes);
    CopyBytes(region_.message_slot(rank(), peer, piece),
              static_cast<const std::byte*>(data) + offset, piece_bytes);
    channel.headers[piece & 1] = {offset / slot_bytes, bytes, bytes};
    channel.written.store(piece + 1);
    region_.RingIfSleeping(peer);
  }
  return absl::OkStatus();
}

absl::Status RegionTransport::Receive(int peer, void* data, size_t bytes) {
  CheckPeer(peer);
  SHOAL_RETURN_IF_ERROR(Begin(Kind::kReceive, bytes));
  Channel& channel = region_.channel(peer, rank());
  const size_t slot_bytes = region_.message_slot_bytes();
  uint64_t piece = channel.read.load(std::memory_order_relaxed);
  for (size_t offset = 0; offset == 0 || offset < bytes; offset += slot_bytes, ++piece) {
    SHOAL_RETURN_IF_ERROR(Await(channel.written, piece + 1, peer));
    const PieceHeader& header = channel.headers[piece & 1];
    if (header.agreement != bytes || header.sequence != offset / slot_bytes) {
      return Fail(absl::StatusCode::kFailedPrecondition,
                  absl::StrCat("rank ", peer, " sent a message of ", header.bytes,
                               " bytes; sender and receiver must agree on the size"));
    }
    CopyBytes(static_cast<std::byte*>(data) + offset, region_.message_slot(peer, rank(), piece),
              PieceBytes(bytes, offset, slot_bytes));
    channel.read.store(piece + 1);
    region_.RingIfSleeping(peer);
  }
  return absl::OkStatus();
}

absl::Status RegionTransport::Await(const std::atomic<uint64_t>& counter, uint64_t at_least,
                                    int peer) {
  Clock::duration& usual =
      usual_wait_[static_cast<int>(operation_.kind)][std::bit_width(operation_.bytes)];
  if (counter.load(std::memory_order_acquire) >= at_least) {
    usual -= usual / 8;
    return absl::OkStatus();
  }
  waiting_for_.store(peer, std::memory_order_relaxed);
  const Clock::time_point start = Clock::now();
  if (operation_.deadline == Clock::time_point()) {
    operation_.deadline = start + absl::ToChronoNanoseconds(options_.op_timeout);
  }
  const Clock::duration spin =
      2 * usual > kMaxSpin ? kMinSpin : std::max<Clock::duration>(2 * usual, kMinSpin);
  absl::Status status;
  if (!options_.allow_spin || !AwaitSpinning(counter, at_least, start + spin)) {
    status = AwaitSleeping(counter, at_least, peer);
  }
  usual += (Clock::now() - start - usual) / 8;
  waiting_for_.store(-1, std::memory_order_relaxed);
  return status;
}

bool RegionTransport::AwaitSpinning(const std::atomic<uint64_t>& counter, uint64_t at_least,
                                    Clock::time_point end) const {
  do {
    for (int i = 0; i < kSpinsPerClockRead; ++i) {
      CpuRelax();
      if (counter.load(std::memory_order_acquire) >= at_least) return true;
    }
  } while (Clock::now() < end);
  return false;
}

// The counter is read after `gone` and `aborted`: what a peer completed before it left, or before
// the group was aborted, is delivered. The bell is read first, so no ring is missed.
absl::Status RegionTransport::AwaitSleeping(const std::atomic<uint64_t>& counter, uint64_t at_least,
                                            int peer) {
  RankCell& cell = region_.cell(rank());
  while (true) {
    const uint32_t bell = cell.bell.load();
    cell.sleeping.store(1);
    const bool gone = region_.cell(peer).gone.load() != 0;
    const bool aborted = region_.aborted();
    if (counter.load() >= at_least) break;
    if (aborted) return dead_ = region_.abort_reason();
    if (gone) {
      return Fail(absl::StatusCode::kUnavailable,
                  absl::StrCat("rank ", peer, " left before its part was complete"));
    }
    const absl::Duration remaining = absl::FromChrono(operation_.deadline - Clock::now());
    if (remaining <= absl::ZeroDuration()) {
      return Fail(absl::StatusCode::kDeadlineExceeded,
                  absl::StrCat("waited ", absl::FormatDuration(options_.op_timeout), " for rank ",
                               peer, "; see whether it hangs, or raise the operation timeout"));
    }
    FutexWait(&cell.bell, bell, remaining);
  }
  cell.sleeping.store(0);
  return absl::OkStatus();
}

absl::Status RegionTransport::Fail(absl::StatusCode code, absl::string_view what) {
  dead_ = absl::Status(code, absl::StrCat(Describe(), ": ", what));
  region_.Abort(dead_);
  return dead_;
}

std::string RegionTransport::Describe() const {
  return absl::StrCat(options_.name, " rank ", rank(), " of ", size(), ": ",
                      NameOf(static_cast<int>(operation_.kind)), ", operation ",
                      num_operations_.load(std::memory_order_relaxed), " (", operation_.bytes,
                      " bytes)");
}

void RegionTransport::CheckPeer(int peer) const {
  CHECK(peer >= 0 && peer < size() && peer != rank())
      << "rank " << rank() << " of " << size() << " addresses rank " << peer;
}

}  // namespace shoal::parallel
