#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "parallel/shared_region.h"
#include "parallel/transport.h"

namespace shoal::parallel {

// Keeps the memory of a region mapped, and whatever watches the peers alive.
class RegionOwner {
 public:
  virtual ~RegionOwner() = default;
  virtual SharedRegion region() const = 0;
};

// A transport over memory that all ranks see; LocalTransport and ShmTransport differ only in where
// the memory comes from and in how a dead peer is noticed. Blocks longer than a slot go in pieces.
// A waiter spins for a while, if allowed, then sleeps on its bell in the region.
class RegionTransport final : public Transport {
 public:
  struct Options {
    std::string name;
    int rank = 0;
    absl::Duration op_timeout = absl::Seconds(5);  // of one operation, all its pieces together
    bool allow_spin = false;  // false when there are more runnable threads than cores
  };

  RegionTransport(Options options, std::unique_ptr<RegionOwner> owner);
  ~RegionTransport() override;  // marks this rank as gone

  absl::string_view name() const override { return options_.name; }
  int rank() const override { return options_.rank; }
  int size() const override { return region_.size(); }
  absl::Status AllGatherV(const void* mine, absl::Span<const size_t> bytes, void* all) override;
  absl::Status Send(int peer, const void* data, size_t bytes) override;
  absl::Status Receive(int peer, void* data, size_t bytes) override;
  absl::Status Barrier() override;
  void Abort(const absl::Status& why) override { region_.Abort(why); }
  WaitInfo wait_info() const override;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Kind { kAllGather, kBarrier, kSend, kReceive };
  static constexpr int kNumKinds = 4;
  static constexpr int kNumSizeClasses = 65;  // bit widths of a size_t

  // The running operation.
  struct Operation {
    Kind kind = Kind::kBarrier;
    size_t bytes = 0;
    Clock::time_point deadline{};  // set by its first wait
  };

  absl::Status Begin(Kind kind, size_t bytes);
  absl::Status Gather(const std::byte* mine, absl::Span<const size_t> bytes, std::byte* all);
  void PublishRound(const PieceHeader& header, const std::byte* piece, size_t bytes);
  absl::Status CheckAgreement(int peer, const PieceHeader& mine);
  // Waits until counter >= at_least, which `peer` will make true.
  absl::Status Await(const std::atomic<uint64_t>& counter, uint64_t at_least, int peer);
  bool AwaitSpinning(const std::atomic<uint64_t>& counter, uint64_t at_least,
                     Clock::time_point end) const;
  absl::Status AwaitSleeping(const std::atomic<uint64_t>& counter, uint64_t at_least, int peer);
  absl::Status Fail(absl::StatusCode code, absl::string_view what);
  std::string Describe() const;  // "shm rank 0 of 2: all-gather 7 (2048 bytes)"
  void CheckPeer(int peer) const;

  const Options options_;
  const std::unique_ptr<RegionOwner> owner_;
  const SharedRegion region_;

  // Of the thread that runs the operations.
  absl::Status dead_;  // the first error
  Operation operation_;
  uint64_t round_ = 0;
  // Mean of the waits, by kind and size of the operation: the spin budget.
  std::array<std::array<Clock::duration, kNumSizeClasses>, kNumKinds> usual_wait_{};

  // Also read by wait_info().
  std::atomic<uint64_t> num_operations_{0};
  std::atomic<int> waiting_for_{-1};
};

}  // namespace shoal::parallel
