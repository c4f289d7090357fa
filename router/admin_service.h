#pragma once

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "router/generate_call.h"
#include "shoal/v1/admin.grpc.pb.h"

namespace shoal::router {

// The operators' API, on a listener of its own.
class AdminService final : public v1::AdminService::CallbackService {
 public:
  AdminService(ServiceContext context, std::string version)
      : context_(std::move(context)), version_(std::move(version)), started_(context_.clock()) {}

  grpc::ServerUnaryReactor* GetClusterStatus(grpc::CallbackServerContext* call,
                                             const v1::GetClusterStatusRequest* request,
                                             v1::GetClusterStatusResponse* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* call,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* ListRequests(grpc::CallbackServerContext* call,
                                         const v1::ListRequestsRequest* request,
                                         v1::ListRequestsResponse* response) override;
  grpc::ServerUnaryReactor* CancelRequest(grpc::CallbackServerContext* call,
                                          const v1::CancelRequestRequest* request,
                                          v1::CancelRequestResponse* response) override;

 private:
  const ServiceContext context_;
  const std::string version_;
  const absl::Time started_;
};

}  // namespace shoal::router
