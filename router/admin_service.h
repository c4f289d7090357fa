#pragma once

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "router/generate_call.h"
#include "shoal/v1/admin.grpc.pb.h"

namespace shoal::router {

// Requests and responses pass as bytes (see wire.h).
using RawAdminService = v1::AdminService::WithRawCallbackMethod_GetClusterStatus<
    v1::AdminService::WithRawCallbackMethod_ListWorkers<
        v1::AdminService::WithRawCallbackMethod_ListRequests<
            v1::AdminService::WithRawCallbackMethod_CancelRequest<
                v1::AdminService::WithRawCallbackMethod_TraceSteps<v1::AdminService::Service>>>>>;

// The operators' API, on a listener of its own.
class AdminService final : public RawAdminService {
 public:
  AdminService(ServiceContext context, std::string version)
      : context_(std::move(context)), version_(std::move(version)), started_(context_.clock()) {}

  grpc::ServerUnaryReactor* GetClusterStatus(grpc::CallbackServerContext* call,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* call,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListRequests(grpc::CallbackServerContext* call,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CancelRequest(grpc::CallbackServerContext* call,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* TraceSteps(grpc::CallbackServerContext* call,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

 private:
  const ServiceContext context_;
  const std::string version_;
  const absl::Time started_;
};

}  // namespace shoal::router
