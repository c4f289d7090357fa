#pragma once

#include <memory>

#include "grpcpp/grpcpp.h"
#include "worker/rank_service.h"

namespace shoal::worker {

// The rank's loop: one thread that takes plans from Execute streams, runs them and answers. The
// next plan is read while a step runs (two plans deep); answers keep the plans' order.
//
// A stream that fails (a plan of another epoch, a lost peer) is finished with the error; the router
// opens a new one with its next epoch.
class ExecuteLoop {
 public:
  // `queue` belongs to the server that `service` is registered with; both outlive Run.
  ExecuteLoop(RankService* service, grpc::ServerCompletionQueue* queue);
  ~ExecuteLoop();

  // Serves until the queue is shut down and drained.
  void Run();

 private:
  class Call;

  void Accept();

  RankService* const service_;
  grpc::ServerCompletionQueue* const queue_;
};

}  // namespace shoal::worker
