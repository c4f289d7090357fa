#pragma once

#include "absl/status/statusor.h"
#include "shoal/worker/v1/worker.pb.h"
#include "worker/engine/rank_engine.h"
#include "worker/engine/rank_model.h"

namespace shoal::worker {

struct ConnectOptions {
  int cancel_fd = -1;       // of a CancelEvent that ends the wait; borrowed
  bool allow_spin = false;  // see parallel::ShmOptions
};

// Meets the ranks of an epoch: the shards of this stage, then the stages of this shard. On all
// ranks in this order, so that they do not wait for each other in a circle. Blocks until all are
// there, or the request's timeout is over. Errors: parallel::ConnectShm's.
absl::StatusOr<OwnedPeers> ConnectPeers(const v1::JoinGroupRequest& request, const RankModel& model,
                                        const ConnectOptions& connect);

}  // namespace shoal::worker
