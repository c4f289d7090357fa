#pragma once

#include <utility>

#include "router/generate_call.h"
#include "shoal/v1/inference.grpc.pb.h"

namespace shoal::router {

// The clients' API on gRPC's callback threads, none of which it blocks.
class InferenceService final : public v1::InferenceService::CallbackService {
 public:
  explicit InferenceService(ServiceContext context) : context_(std::move(context)) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* call,
                                     const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override;
  grpc::ServerWriteReactor<v1::GenerateStreamResponse>* GenerateStream(
      grpc::CallbackServerContext* call, const v1::GenerateStreamRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* call,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* call,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* ApplyChatTemplate(grpc::CallbackServerContext* call,
                                              const v1::ApplyChatTemplateRequest* request,
                                              v1::ApplyChatTemplateResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* call,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* call,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;

 private:
  const ServiceContext context_;
};

}  // namespace shoal::router
