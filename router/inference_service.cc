#include "router/inference_service.h"

#include <memory>

#include "router/proto_time.h"
#include "router/rpc_status.h"

namespace shoal::router {
namespace {

// Answers a call that needs no engine, but the model: `handle(model)` gives a StatusOr<Response>.
template <typename Response, typename Handle>
grpc::ServerUnaryReactor* Answer(const ServiceContext& context, grpc::CallbackServerContext* call,
                                 Response* response, Handle handle) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const auto model = CurrentModel(context);
  if (!model.ok()) {
    reactor->Finish(ToGrpcStatus(model.status(), call));
    return reactor;
  }
  absl::StatusOr<Response> result = handle(**model);
  if (result.ok()) response->Swap(&*result);
  reactor->Finish(ToGrpcStatus(result.status(), call));
  return reactor;
}

void FillModelInfo(const ServedModel& model, v1::ModelInfo* info) {
  info->set_name(model.name);
  info->set_architecture(model.architecture);
  info->set_quantization(model.quantization);
  info->set_max_context_tokens(model.max_seq_len);
  info->set_vocab_size(model.vocab_size);
  for (const uint32_t id : model.eos_ids) info->add_end_token_ids(id);
  info->set_has_chat_template(model.chat_template != nullptr);
  ToProto(model.load_time, info->mutable_load_time());
  info->set_numerics_id(model.numerics_id);
  info->set_fingerprint(model.fingerprint);
}

}  // namespace

grpc::ServerUnaryReactor* InferenceService::Generate(grpc::CallbackServerContext* call,
                                                     const v1::GenerateRequest* request,
                                                     v1::GenerateResponse* response) {
  return NewGenerateCall(context_, call, *request, response);
}

grpc::ServerWriteReactor<v1::GenerateStreamResponse>* InferenceService::GenerateStream(
    grpc::CallbackServerContext* call, const v1::GenerateStreamRequest* request) {
  return NewGenerateStreamCall(context_, call, request->request());
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* call,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  return Answer(context_, call, response, [this, request](const ServedModel& model) {
    return context_.frontend->Tokenize(model, *request);
  });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* call,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return Answer(context_, call, response, [this, request](const ServedModel& model) {
    return context_.frontend->Detokenize(model, *request);
  });
}

grpc::ServerUnaryReactor* InferenceService::ApplyChatTemplate(
    grpc::CallbackServerContext* call, const v1::ApplyChatTemplateRequest* request,
    v1::ApplyChatTemplateResponse* response) {
  return Answer(context_, call, response, [this, request](const ServedModel& model) {
    return context_.frontend->ApplyChatTemplate(model, *request, context_.clock());
  });
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* call,
                                                       const v1::ListModelsRequest* request,
                                                       v1::ListModelsResponse* response) {
  // While nothing is loaded the list is empty, which is no error.
  const std::shared_ptr<const ServedModel> model = context_.engine->model();
  if (model != nullptr) FillModelInfo(*model, response->add_models());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* call,
                                                     const v1::GetModelRequest* request,
                                                     v1::GetModelResponse* response) {
  return Answer(context_, call, response,
                [request](const ServedModel& model) -> absl::StatusOr<v1::GetModelResponse> {
                  if (absl::Status status = CheckModelName(model, request->model()); !status.ok()) {
                    return status;
                  }
                  v1::GetModelResponse result;
                  FillModelInfo(model, result.mutable_model());
                  return result;
                });
}

}  // namespace shoal::router
