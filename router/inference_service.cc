#include "router/inference_service.h"

#include <atomic>
#include <functional>
#include <memory>

#include "base/status_macros.h"
#include "router/proto_time.h"
#include "router/rpc_status.h"
#include "router/wire.h"

namespace shoal::router {
namespace {

// A call that needs no engine: answered in its lane. Deletes itself when gRPC is done with it.
class AnswerCall final : public grpc::ServerUnaryReactor {
 public:
  using Answer =
      std::function<absl::Status(const grpc::ByteBuffer& request, grpc::ByteBuffer* response)>;

  AnswerCall(const ServiceContext& context, grpc::CallbackServerContext* call, Answer answer)
      : context_(context), call_(call), answer_(std::move(answer)) {}

  void Begin(const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
    const absl::Status submitted = context_.lanes->Submit(
        request->Length(), [this, request, response](const absl::Status& turn) {
          const absl::Status status = turn.ok() ? Run(*request, response) : turn;
          if (status.ok()) NoteWrite(response->Length());
          Finish(ToGrpcStatus(status, call_));
        });
    if (!submitted.ok()) Finish(ToGrpcStatus(submitted, call_));
  }

  void OnCancel() override { is_cancelled_.store(true); }
  void OnDone() override { delete this; }

 private:
  // The client's deadline passes as a cancellation, too.
  absl::Status Run(const grpc::ByteBuffer& request, grpc::ByteBuffer* response) {
    if (is_cancelled_.load()) return absl::CancelledError("the client cancelled the call");
    return answer_(request, response);
  }

  // Ends with the call. Short answers are not worth counting.
  void NoteWrite(size_t bytes) {
    if (bytes <= WorkLanes::kMaxInlineBytes) return;
    outbox_ = context_.outboxes->Open(EndOf(call_));
    outbox_->BeginWrite(bytes);
  }

  const ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  const Answer answer_;
  std::shared_ptr<Outboxes::Outbox> outbox_;  // null: a short answer
  std::atomic<bool> is_cancelled_{false};
};

// Answers with `handle(request)`, a StatusOr<Response> for a `const Request&`.
template <typename Request, typename Handle>
grpc::ServerUnaryReactor* Answer(const ServiceContext& context, grpc::CallbackServerContext* call,
                                 const grpc::ByteBuffer* request_bytes,
                                 grpc::ByteBuffer* response_bytes, Handle handle) {
  auto* reactor = new AnswerCall(  // deletes itself in OnDone
      context, call, [handle](const grpc::ByteBuffer& bytes, grpc::ByteBuffer* response) {
        Request request;
        SHOAL_RETURN_IF_ERROR(ParseMessage(bytes, &request));
        auto result = handle(request);
        if (result.ok()) SerializeMessage(*result, response);
        return result.status();
      });
  reactor->Begin(request_bytes, response_bytes);
  return reactor;
}

// Likewise with `handle(model, request)`.
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
