#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "grpcpp/grpcpp.h"
#include "router/generate_call.h"
#include "router/wire.h"

namespace shoal::router {

// A call that needs no engine: answered in its lane. Deletes itself when gRPC is done with it.
class AnswerCall final : public grpc::ServerUnaryReactor {
 public:
  using Answer =
      std::function<absl::Status(const grpc::ByteBuffer& request, grpc::ByteBuffer* response)>;

  AnswerCall(const ServiceContext& context, grpc::CallbackServerContext* call, Answer answer)
      : context_(context), call_(call), answer_(std::move(answer)) {}

  // Both outlive the call, as gRPC's do.
  void Begin(const grpc::ByteBuffer* request, grpc::ByteBuffer* response);

  void OnCancel() override { is_cancelled_.store(true); }
  void OnDone() override { delete this; }

 private:
  // The client's deadline passes as a cancellation, too.
  absl::Status Run(const grpc::ByteBuffer& request, grpc::ByteBuffer* response);

  // Ends with the call. Short answers are not worth counting.
  void NoteWrite(size_t bytes);

  const ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  const Answer answer_;
  std::shared_ptr<Outboxes::Outbox> outbox_;  // null: a short answer
  std::atomic<bool> is_cancelled_{false};
};

// Answers with `handle(request)`, a StatusOr<Response> for a `const Request&`; INVALID_ARGUMENT for
// bytes that are no Request. `context` outlives the call.
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

}  // namespace shoal::router
