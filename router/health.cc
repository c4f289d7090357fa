#include "router/health.h"

#include "glog/logging.h"
#include "grpc/health/v1/health.pb.h"
#include "shoal/v1/inference.grpc.pb.h"

namespace shoal::router {

// gRPC serves the health service without its descriptor: this links it, so that reflection can
// describe what it lists.
Health::Health() { CHECK(grpc::health::v1::HealthCheckRequest::descriptor() != nullptr); }

void Health::Attach(grpc::HealthCheckServiceInterface* service) {
  if (service == nullptr) return;
  base::MutexLock lock(&mutex_);
  services_.push_back(service);
  Publish();
}

void Health::Detach() {
  base::MutexLock lock(&mutex_);
  services_.clear();
}

void Health::SetEngineReady(bool is_ready) {
  base::MutexLock lock(&mutex_);
  is_engine_ready_ = is_ready;
  Publish();
}

void Health::SetDraining() {
  base::MutexLock lock(&mutex_);
  is_draining_ = true;
  Publish();
}

void Health::Publish() {
  const bool is_ready = is_engine_ready_ && !is_draining_;
  for (grpc::HealthCheckServiceInterface* service : services_) {
    service->SetServingStatus("readiness", is_ready);
    service->SetServingStatus(v1::InferenceService::service_full_name(), is_ready);
  }
}

}  // namespace shoal::router
