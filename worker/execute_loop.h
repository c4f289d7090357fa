#pragma once

#include <memory>

#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"
#include "worker/rank_service.h"

namespace shoal::worker {

// The rank's loop: one thread that takes plans from Execute streams, runs them and answers. The
// next plan is read while a step runs; answers keep the plans' order.
//
// A stream that fails (a plan of another epoch, a lost peer) is finished with the error; the router
// opens a new one with its next epoch.
class ExecuteLoop {
 public:
  // `queue` belongs to the server that `service` is registered with; both outlive Run.
  ExecuteLoop(RankService* service, grpc::ServerCompletionQueue* queue);
  ~ExecuteLoop();

  // Serves until Shutdown, then drains the queue.
  void Run();

  // Ends Run. Any thread, once. REQUIRES: the server was shut down before.
  void Shutdown();

 private:
  class Call;

  void Accept();

  RankService* const service_;
  grpc::ServerCompletionQueue* const queue_;
  grpc::Alarm shutdown_alarm_;
  bool stopping_ = false;  // the queue takes no new operations; the loop's thread only
};

}  // namespace shoal::worker
