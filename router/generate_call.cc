#include "router/generate_call.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "router/proto_time.h"
#include "router/rpc_status.h"

namespace shoal::router {
namespace {

absl::Time DeadlineOf(const grpc::CallbackServerContext& call) {
  const auto deadline = call.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                  : absl::FromChrono(deadline);
}

// A request that passed the door. The call drives `stream`; the ticket is given back with the call.
struct Accepted {
  std::shared_ptr<RequestStream> stream;  // shared with the engine while sequences run
  RunningRequests::Ticket ticket;
};

absl::StatusOr<Accepted> Accept(const ServiceContext& context,
                                const grpc::CallbackServerContext& call,
                                const v1::GenerateRequest& request, std::function<void()> wake) {
  SHOAL_RETURN_IF_ERROR(context.requests->CheckAccepting());
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<const ServedModel> model, CurrentModel(context));
  SHOAL_RETURN_IF_ERROR(Retryable(context.engine->Readiness()));
  SHOAL_ASSIGN_OR_RETURN(
      ValidRequest valid,
      context.frontend->Validate(*model, request, context.clock(), DeadlineOf(call)));
  Accepted accepted;
  accepted.stream = std::make_shared<RequestStream>(
      std::move(model), std::move(valid), context.engine, std::move(wake), context.stream_options);
  SHOAL_ASSIGN_OR_RETURN(accepted.ticket, context.requests->Add(accepted.stream, call.peer()));
  return accepted;
}

// The part of a call that its two forms share. `Reactor` is gRPC's base class.
//
// One thread at a time is inside Advance: the handler's first, then whoever ends what the call
// waits for (a write, or `wake` of the stream). So the reactor needs no lock, never finishes with a
// write outstanding, and always finishes, because the stream always ends.
template <typename Reactor>
class GenerateCall : public Reactor {
 public:
  explicit GenerateCall(grpc::CallbackServerContext* call) : call_(call) {}

  void Begin(const ServiceContext& context, const v1::GenerateRequest& request) {
    auto accepted = Accept(context, *call_, request, [this] { Advance(); });
    if (!accepted.ok()) {
      this->Finish(ToGrpcStatus(accepted.status(), call_));
      return;
    }
    ticket_ = std::move(accepted->ticket);
    stream_ = std::move(accepted->stream);
    stream_->Start();
    Advance();
  }

  // Polls until the call has to wait or is finished.
  virtual void Advance() = 0;

  void OnCancel() override {
    if (stream_ != nullptr) stream_->Cancel(absl::CancelledError("the client cancelled the call"));
  }

  void OnDone() override { delete this; }

 protected:
  void FinishWithStatus() { this->Finish(ToGrpcStatus(stream_->status(), call_)); }

  // Sent with the first message. A refusal has none, so that it stays a trailers-only response,
  // which clients with a retry policy may repeat.
  void AddRequestId() { call_->AddInitialMetadata("x-request-id", stream_->request().request_id); }

  RequestStream* stream() { return stream_.get(); }

 private:
  grpc::CallbackServerContext* const call_;
  std::shared_ptr<RequestStream> stream_;  // shared with the engine; null if refused
  RunningRequests::Ticket ticket_;
};

class StreamCall final : public GenerateCall<grpc::ServerWriteReactor<v1::GenerateStreamResponse>> {
 public:
  using GenerateCall::GenerateCall;

  void Advance() override {
    switch (stream()->Poll(&message_)) {
      case RequestStream::Next::kMessage:
        if (message_.has_seed()) AddRequestId();  // the first
        StartWrite(&message_);
        break;
      case RequestStream::Next::kWait:
        break;
      case RequestStream::Next::kEnd:
        FinishWithStatus();
        break;
    }
  }

  void OnWriteDone(bool ok) override {
    if (!ok) stream()->Cancel(absl::CancelledError("the client is gone"));
    Advance();
  }

 private:
  v1::GenerateStreamResponse message_;
};

class UnaryCall final : public GenerateCall<grpc::ServerUnaryReactor> {
 public:
  UnaryCall(grpc::CallbackServerContext* call, size_t max_bytes, v1::GenerateResponse* response)
      : GenerateCall(call), max_bytes_(max_bytes), response_(response) {}

  void Advance() override {
    v1::GenerateStreamResponse message;
    while (true) {
      switch (stream()->Poll(&message)) {
        case RequestStream::Next::kMessage:
          num_bytes_ += message.ByteSizeLong();
          Collect(&message, response_);
          if (num_bytes_ > max_bytes_) CancelTooLarge();
          break;
        case RequestStream::Next::kWait:
          return;
        case RequestStream::Next::kEnd:
          if (stream()->status().ok()) AddRequestId();
          FinishWithStatus();
          return;
      }
    }
  }

 private:
  void CancelTooLarge() {
    stream()->Cancel(absl::ResourceExhaustedError(
        absl::StrCat("the response has more than ", max_bytes_,
                     " bytes: use GenerateStream, or ask for fewer tokens, choices or logprobs")));
  }

  const size_t max_bytes_;
  v1::GenerateResponse* const response_;
  size_t num_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const ServedModel>> CurrentModel(const ServiceContext& context) {
  std::shared_ptr<const ServedModel> model = context.engine->model();
  if (model != nullptr) return model;
  absl::Status status = context.engine->Readiness();
  if (status.ok()) status = absl::UnavailableError("the model is being loaded");
  return Retryable(std::move(status));
}

grpc::ServerUnaryReactor* NewGenerateCall(const ServiceContext& context,
                                          grpc::CallbackServerContext* call,
                                          const v1::GenerateRequest& request,
                                          v1::GenerateResponse* response) {
  // Deletes itself in OnDone.
  auto* reactor = new UnaryCall(call, context.stream_options.max_pending_bytes, response);
  ToProto(context.clock(), response->mutable_create_time());
  reactor->Begin(context, request);
  return reactor;
}

grpc::ServerWriteReactor<v1::GenerateStreamResponse>* NewGenerateStreamCall(
    const ServiceContext& context, grpc::CallbackServerContext* call,
    const v1::GenerateRequest& request) {
  auto* reactor = new StreamCall(call);  // deletes itself in OnDone
  reactor->Begin(context, request);
  return reactor;
}

}  // namespace shoal::router
