#include "router/inference_service.h"

#include <memory>

#include "base/status_macros.h"
#include "router/answer_call.h"
#include "router/proto_time.h"

namespace shoal::router {
namespace {

// Answers with `handle(model, request)`, see Answer.
template <typename Request, typename Handle>
grpc::ServerUnaryReactor* AnswerOfModel(const ServiceContext& context,
                                        grpc::CallbackServerContext* call,
                                        const grpc::ByteBuffer* request_bytes,
                                        grpc::ByteBuffer* response_bytes, Handle handle) {
  using Result =
      decltype(handle(std::declval<const ServedModel&>(), std::declval<const Request&>()));
  return Answer<Request>(context, call, request_bytes, response_bytes,
                         [&context, handle](const Request& request) -> Result {
                           SHOAL_ASSIGN_OR_RETURN(const auto model, CurrentModel(context));
                           return handle(*model, request);
                         });
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
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return NewGenerateCall(context_, call, request, response);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::GenerateStream(
    grpc::CallbackServerContext* call, const grpc::ByteBuffer* request) {
  return NewGenerateStreamCall(context_, call, request);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* call,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return AnswerOfModel<v1::TokenizeRequest>(
      context_, call, request, response,
      [this](const ServedModel& model, const v1::TokenizeRequest& tokenize) {
        return context_.frontend->Tokenize(model, tokenize);
      });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* call,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return AnswerOfModel<v1::DetokenizeRequest>(
      context_, call, request, response,
      [this](const ServedModel& model, const v1::DetokenizeRequest& detokenize) {
        return context_.frontend->Detokenize(model, detokenize);
      });
}

grpc::ServerUnaryReactor* InferenceService::ApplyChatTemplate(grpc::CallbackServerContext* call,
                                                              const grpc::ByteBuffer* request,
                                                              grpc::ByteBuffer* response) {
  return AnswerOfModel<v1::ApplyChatTemplateRequest>(
      context_, call, request, response,
      [this](const ServedModel& model, const v1::ApplyChatTemplateRequest& apply) {
        return context_.frontend->ApplyChatTemplate(model, apply, context_.clock());
      });
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* call,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return Answer<v1::ListModelsRequest>(
      context_, call, request, response,
      [this](const v1::ListModelsRequest&) -> absl::StatusOr<v1::ListModelsResponse> {
        v1::ListModelsResponse result;
        // While nothing is loaded the list is empty, which is no error.
        const std::shared_ptr<const ServedModel> model = context_.engine->model();
        if (model != nullptr) FillModelInfo(*model, result.add_models());
        return result;
      });
}

grpc::ServerUnaryReactor* InferenceService::GetModel(grpc::CallbackServerContext* call,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return AnswerOfModel<v1::GetModelRequest>(
      context_, call, request, response,
      [](const ServedModel& model,
         const v1::GetModelRequest& get) -> absl::StatusOr<v1::GetModelResponse> {
        SHOAL_RETURN_IF_ERROR(CheckModelName(model, get.model()));
        v1::GetModelResponse result;
        FillModelInfo(model, result.mutable_model());
        return result;
      });
}

}  // namespace shoal::router
