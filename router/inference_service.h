#pragma once

#include <utility>

#include "router/generate_call.h"
#include "shoal/v1/inference.grpc.pb.h"

namespace shoal::router {

// The clients' API on gRPC's callback threads, none of which it blocks. Requests and responses pass
// as bytes (see wire.h).
using RawInferenceService = v1::InferenceService::WithRawCallbackMethod_Generate<
    v1::InferenceService::WithRawCallbackMethod_GenerateStream<
        v1::InferenceService::WithRawCallbackMethod_Tokenize<
            v1::InferenceService::WithRawCallbackMethod_Detokenize<
                v1::InferenceService::WithRawCallbackMethod_ApplyChatTemplate<
                    v1::InferenceService::WithRawCallbackMethod_ListModels<
                        v1::InferenceService::WithRawCallbackMethod_GetModel<
                            v1::InferenceService::Service>>>>>>>;

class InferenceService final : public RawInferenceService {
 public:
  explicit InferenceService(ServiceContext context) : context_(std::move(context)) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* call,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateStream(
      grpc::CallbackServerContext* call, const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* call,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* call,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ApplyChatTemplate(grpc::CallbackServerContext* call,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* call,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* call,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;

 private:
  const ServiceContext context_;
};

}  // namespace shoal::router
