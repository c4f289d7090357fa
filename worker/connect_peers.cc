#include "worker/connect_peers.h"

#include <algorithm>

#include "base/status_macros.h"
#include "parallel/shared_region.h"
#include "parallel/shm_transport.h"

namespace shoal::worker {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
// A rank that waits this long for a peer gives up by itself; the router's step deadline comes
// first.
constexpr absl::Duration kCollectiveTimeout = absl::Seconds(120);
// Stages gather nothing: they only send.
constexpr size_t kStageSlotBytes = 4096;

}  // namespace

absl::StatusOr<OwnedPeers> ConnectPeers(const v1::JoinGroupRequest& request, const RankModel& model,
                                        const ConnectOptions& connect) {
  parallel::ShmOptions options;
  options.connect_timeout = kConnectTimeout;
  if (request.has_timeout()) {
    options.connect_timeout =
        absl::Seconds(request.timeout().seconds()) + absl::Nanoseconds(request.timeout().nanos());
  }
  options.cancel_fd = connect.cancel_fd;
  options.op_timeout = kCollectiveTimeout;
  options.allow_spin = connect.allow_spin;
  OwnedPeers peers;
  if (model.tp() > 1) {
    options.nonce = request.rendezvous();
    options.rank = model.shard();
    options.size = model.tp();
    SHOAL_ASSIGN_OR_RETURN(peers.shards, parallel::ConnectShm(options));
  }
  if (model.pp() > 1) {
    options.nonce = request.pipeline_rendezvous();
    options.rank = model.stage();
    options.size = model.pp();
    options.slot_bytes = kStageSlotBytes;
    // A whole step fits: a stage goes on to its next step when the one after it is still busy.
    options.message_slot_bytes =
        std::min(parallel::SharedRegion::kMaxSlotBytes, model.boundary_bytes());
    SHOAL_ASSIGN_OR_RETURN(peers.stages, parallel::ConnectShm(options));
  }
  return peers;
}

}  // namespace shoal::worker
