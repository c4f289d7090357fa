#include "parallel/shm_transport.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "parallel/mapping.h"
#include "parallel/region_transport.h"
#include "parallel/shm_rendezvous.h"

namespace shoal::parallel {
namespace {

constexpr size_t kMaxNonceBytes = 80;

RegionShape ShapeOf(const ShmOptions& options) {
  return {options.size, options.slot_bytes, options.message_slot_bytes};
}

absl::Status CheckOptions(const ShmOptions& options) {
  SHOAL_RETURN_IF_ERROR(SharedRegion::CheckShape(ShapeOf(options)));
  if (options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, ": must be 0 to ", options.size - 1));
  }
  bool printable = !options.nonce.empty() && options.nonce.size() <= kMaxNonceBytes;
  for (const char c : options.nonce) {
    printable = printable && (absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.');
  }
  if (!printable) {
    return absl::InvalidArgumentError(absl::StrCat("a nonce of ", options.nonce.size(),
                                                   " bytes: must be 1 to ", kMaxNonceBytes,
                                                   " letters, digits, '-', '_' or '.'"));
  }
  return absl::OkStatus();
}

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// A memory file of fixed size, so that no peer can make us fault by cutting it. What collectives
// use is allocated now: too little memory is an error here, not a signal in a step.
absl::StatusOr<base::UniqueFd> NewMemory(const ShmOptions& options) {
  const size_t bytes = SharedRegion::NumBytes(ShapeOf(options));
  base::UniqueFd memory(memfd_create("shoal-shm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return absl::ErrnoToStatus(errno, "memfd_create");
  if (ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0 ||
      fallocate(memory.get(), 0, 0,
                static_cast<off_t>(SharedRegion::NumCollectiveBytes(ShapeOf(options)))) != 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("allocating ", bytes, " bytes of shared memory; use smaller slots"));
  }
  if (fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) return absl::ErrnoToStatus(errno, "seals");
  return memory;
}

absl::Status CheckMemory(const base::UniqueFd& memory, size_t bytes) {
  struct stat info = {};
  if (fstat(memory.get(), &info) != 0) return absl::ErrnoToStatus(errno, "fstat");
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (static_cast<size_t>(info.st_size) != bytes || seals < 0 || (seals & kSeals) != kSeals) {
    return absl::FailedPreconditionError(absl::StrCat("shared memory of ", info.st_size,
                                                      " bytes, expected ", bytes,
                                                      " and sealed; update all ranks"));
  }
  return absl::OkStatus();
}

// Sleeps until a peer's lifeline ends, then marks that rank as gone. REQUIRES: the region lives
// longer.
class PeerWatcher {
 public:
  static absl::StatusOr<std::unique_ptr<PeerWatcher>> Start(SharedRegion region,
                                                            std::vector<base::UniqueFd> peers) {
    base::UniqueFd stop(eventfd(0, EFD_CLOEXEC));
    if (!stop.valid()) return absl::ErrnoToStatus(errno, "eventfd");
    return std::unique_ptr<PeerWatcher>(new PeerWatcher(region, std::move(peers), std::move(stop)));
  }

  ~PeerWatcher() {
    const uint64_t one = 1;
    PCHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one)) << "eventfd";
    thread_.join();
  }

 private:
  PeerWatcher(SharedRegion region, std::vector<base::UniqueFd> peers, base::UniqueFd stop)
      : region_(region), peers_(std::move(peers)), stop_(std::move(stop)), thread_([this] {
          pthread_setname_np(pthread_self(), "shoal-shm-watch");
          Watch();
        }) {}

  void Watch() {
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
    // poll ignores negative descriptors: this rank's own entry, and those that have ended.
    for (const base::UniqueFd& peer : peers_) polled.push_back({peer.get(), 0, 0});
    while (polled[0].revents == 0) {
      const int rc = poll(polled.data(), polled.size(), -1);
      PCHECK(rc >= 0 || errno == EINTR) << "poll";
      if (rc < 0) continue;
      for (size_t rank = 0; rank < peers_.size(); ++rank) {
        pollfd& peer = polled[rank + 1];
        if (peer.fd < 0 || peer.revents == 0) continue;
        region_.MarkGone(static_cast<int>(rank));
        peer.fd = -1;
      }
    }
  }

  const SharedRegion region_;
  const std::vector<base::UniqueFd> peers_;
  const base::UniqueFd stop_;
  std::thread thread_;
};

// Destroyed in reverse: the watcher, the mapping, then the lifeline.
class ShmOwner final : public RegionOwner {
 public:
  ShmOwner(base::UniqueFd lifeline, Mapping mapping, SharedRegion region,
           std::unique_ptr<PeerWatcher> watcher)
      : lifeline_(std::move(lifeline)),
        mapping_(std::move(mapping)),
        region_(region),
        watcher_(std::move(watcher)) {}
  SharedRegion region() const override { return region_; }

 private:
  const base::UniqueFd lifeline_;
  const Mapping mapping_;
  const SharedRegion region_;
  const std::unique_ptr<PeerWatcher> watcher_;
};

struct Joined {
  ShmMembership membership;
  Mapping mapping;
  SharedRegion region;
};

absl::StatusOr<Joined> Host(const ShmOptions& options) {
  const size_t bytes = SharedRegion::NumBytes(ShapeOf(options));
  SHOAL_ASSIGN_OR_RETURN(base::UniqueFd memory, NewMemory(options));
  SHOAL_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Create(memory.get(), bytes));
  const SharedRegion region = SharedRegion::Create(mapping.data(), ShapeOf(options));
  SHOAL_ASSIGN_OR_RETURN(ShmMembership membership, HostRendezvous(options, std::move(memory)));
  return Joined{std::move(membership), std::move(mapping), region};
}

absl::StatusOr<Joined> Join(const ShmOptions& options) {
  const size_t bytes = SharedRegion::NumBytes(ShapeOf(options));
  SHOAL_ASSIGN_OR_RETURN(ShmMembership membership, JoinRendezvous(options));
  SHOAL_RETURN_IF_ERROR(CheckMemory(membership.memory, bytes));
  SHOAL_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Create(membership.memory.get(), bytes));
  SHOAL_ASSIGN_OR_RETURN(SharedRegion region,
                         SharedRegion::Attach(mapping.data(), ShapeOf(options)));
  return Joined{std::move(membership), std::move(mapping), region};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> ConnectShm(const ShmOptions& options) {
  SHOAL_RETURN_IF_ERROR(CheckOptions(options));
  SHOAL_ASSIGN_OR_RETURN(Joined joined, options.rank == 0 ? Host(options) : Join(options));
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<PeerWatcher> watcher,
                         PeerWatcher::Start(joined.region, std::move(joined.membership.peers)));
  return std::make_unique<RegionTransport>(
      RegionTransport::Options{"shm", options.rank, options.op_timeout, options.allow_spin},
      std::make_unique<ShmOwner>(std::move(joined.membership.lifeline), std::move(joined.mapping),
                                 joined.region, std::move(watcher)));
}

}  // namespace shoal::parallel
