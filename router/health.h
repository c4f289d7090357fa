#pragma once

#include <vector>

#include "base/thread/mutex.h"
#include "grpcpp/health_check_service_interface.h"

namespace shoal::router {

// What grpc.health.v1 says on every listener:
//   ""                            liveness: SERVING as long as the process answers
//   "readiness" and the name of   SERVING while the worker group can run a request and no drain has
//   the inference service         begun; an overloaded router is ready
// Thread-safe.
class Health {
 public:
  Health();

  // `service` lives until Detach. Null (health checks are off) is ignored.
  void Attach(grpc::HealthCheckServiceInterface* service);
  void Detach();

  void SetEngineReady(bool is_ready);
  // For good.
  void SetDraining();

 private:
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  base::Mutex mutex_;
  std::vector<grpc::HealthCheckServiceInterface*> services_ ABSL_GUARDED_BY(mutex_);
  bool is_engine_ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shoal::router
