#include "router/generate_call.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "grpc/grpc.h"
#include "router/proto_time.h"
#include "router/rpc_status.h"
#include "router/wire.h"

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
  SHOAL_RETURN_IF_ERROR(Retryable(context.engine->Admission()));
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
// One thread at a time is inside Open and Advance: the handler's or a lane's first, then whoever
// ends what the call waits for (a write, or `wake` of the stream). So the reactor needs no lock
// there, never finishes with a write outstanding, and always finishes, because the stream always
// ends. OnCancel may come at any time, by another thread.
template <typename Reactor>
class GenerateCall : public Reactor {
 public:
  GenerateCall(const ServiceContext& context, grpc::CallbackServerContext* call,
               const grpc::ByteBuffer* request)
      : context_(context), call_(call), request_(request) {}

  void Begin() {
    const absl::Status submitted = context_.lanes->Submit(
        request_->Length(), [this](const absl::Status& turn) { Open(turn); });
    if (!submitted.ok()) Refuse(submitted);
  }

  // Polls until the call has to wait or is finished.
  virtual void Advance() = 0;

  void OnCancel() override {
    std::shared_ptr<RequestStream> stream;
    {
      base::MutexLock lock(&mutex_);
      is_cancelled_ = true;
      stream = cancellable_;
    }
    if (stream != nullptr) stream->Cancel(ClientIsGone());
  }

  void OnDone() override { delete this; }

 protected:
  virtual absl::Status Parse(const grpc::ByteBuffer& bytes, v1::GenerateRequest* request) = 0;

  void FinishWithStatus() {
    ticket_.ReleaseId();  // whoever hears of the end may use the id again
    this->Finish(ToGrpcStatus(stream_->status(), call_));
  }

  // Sent with the first message. A refusal has none, so that it stays a trailers-only response,
  // which clients with a retry policy may repeat.
  void AddRequestId() { call_->AddInitialMetadata("x-request-id", stream_->request().request_id); }

  RequestStream* stream() { return stream_.get(); }
  Outboxes::Outbox* outbox() { return outbox_.get(); }
  const ServiceContext& context() const { return context_; }

  static absl::Status ClientIsGone() {
    return absl::CancelledError("the client cancelled the call");
  }

 private:
  void Refuse(const absl::Status& status) { this->Finish(ToGrpcStatus(status, call_)); }

  bool is_cancelled() {
    base::MutexLock lock(&mutex_);
    return is_cancelled_;
  }

  absl::StatusOr<Accepted> ParseAndAccept() {
    SHOAL_RETURN_IF_ERROR(context_.requests->CheckAccepting());
    v1::GenerateRequest request;
    SHOAL_RETURN_IF_ERROR(Parse(*request_, &request));
    // gRPC keeps the bytes until the call ends, but does not look at them again.
    const_cast<grpc::ByteBuffer*>(request_)->Clear();
    return Accept(context_, *call_, request, [this] { Advance(); });
  }

  std::shared_ptr<Outboxes::Outbox> OpenOutbox() {
    // The stream holds the outbox, so the outbox does not hold the stream.
    return context_.outboxes->Open(
        [stream = std::weak_ptr<RequestStream>(stream_), end = EndOf(call_)](absl::Status why) {
          if (const auto still = stream.lock()) still->Cancel(why);
          end(why);
        });
  }

  // `turn`: of the lane.
  void Open(const absl::Status& turn) {
    if (!turn.ok()) return Refuse(turn);
    if (is_cancelled()) return Refuse(ClientIsGone());
    auto accepted = ParseAndAccept();
    if (!accepted.ok()) return Refuse(accepted.status());
    ticket_ = std::move(accepted->ticket);
    stream_ = std::move(accepted->stream);
    bool is_dead = false;
    {
      base::MutexLock lock(&mutex_);
      cancellable_ = stream_;
      is_dead = is_cancelled_;
    }
    if (is_dead) stream_->Cancel(ClientIsGone());
    outbox_ = OpenOutbox();
    stream_->Start(outbox_);
    Advance();
  }

  const ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  const grpc::ByteBuffer* const request_;
  std::shared_ptr<RequestStream> stream_;     // shared with the engine; null if refused
  std::shared_ptr<Outboxes::Outbox> outbox_;  // shared with the stream
  RunningRequests::Ticket ticket_;

  base::Mutex mutex_;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<RequestStream> cancellable_ ABSL_GUARDED_BY(mutex_);  // stream_, for OnCancel
};

class StreamCall final : public GenerateCall<grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  using GenerateCall::GenerateCall;

  void Advance() override {
    v1::GenerateStreamResponse message;
    switch (stream()->Poll(&message)) {
      case RequestStream::Next::kMessage:
        if (message.has_seed()) AddRequestId();  // the first
        SerializeMessage(message, &bytes_);
        outbox()->BeginWrite(bytes_.Length());
        StartWrite(&bytes_);
        break;
      case RequestStream::Next::kWait:
        break;
      case RequestStream::Next::kEnd:
        FinishWithStatus();
        break;
    }
  }

  void OnWriteDone(bool ok) override {
    outbox()->EndWrite();
    bytes_.Clear();
    if (!ok) stream()->Cancel(absl::CancelledError("the client is gone"));
    Advance();
  }

 private:
  absl::Status Parse(const grpc::ByteBuffer& bytes, v1::GenerateRequest* request) override {
    v1::GenerateStreamRequest outer;
    SHOAL_RETURN_IF_ERROR(ParseMessage(bytes, &outer));
    request->Swap(outer.mutable_request());
    return absl::OkStatus();
  }

  grpc::ByteBuffer bytes_;  // of the message that is being written
};

class UnaryCall final : public GenerateCall<grpc::ServerUnaryReactor> {
 public:
  UnaryCall(const ServiceContext& context, grpc::CallbackServerContext* call,
            const grpc::ByteBuffer* request, grpc::ByteBuffer* response)
      : GenerateCall(context, call, request), bytes_(response) {
    ToProto(context.clock(), response_.mutable_create_time());
  }

  void Advance() override {
    v1::GenerateStreamResponse message;
    while (true) {
      switch (stream()->Poll(&message)) {
        case RequestStream::Next::kMessage:
          num_bytes_ += message.ByteSizeLong();
          Collect(&message, &response_);
          if (num_bytes_ > max_bytes()) CancelTooLarge();
          break;
        case RequestStream::Next::kWait:
          return;
        case RequestStream::Next::kEnd:
          if (stream()->status().ok()) {
            AddRequestId();
            SerializeMessage(response_, bytes_);
            response_.Clear();
            outbox()->BeginWrite(bytes_->Length());
          }
          FinishWithStatus();
          return;
      }
    }
  }

 private:
  absl::Status Parse(const grpc::ByteBuffer& bytes, v1::GenerateRequest* request) override {
    return ParseMessage(bytes, request);
  }

  size_t max_bytes() const { return context().stream_options.max_pending_bytes; }

  void CancelTooLarge() {
    stream()->Cancel(absl::ResourceExhaustedError(
        absl::StrCat("the response has more than ", max_bytes(),
                     " bytes: use GenerateStream, or ask for fewer tokens, choices or logprobs")));
  }

  v1::GenerateResponse response_;
  grpc::ByteBuffer* const bytes_;  // of the response, for gRPC
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

Outboxes::EndCall EndOf(grpc::CallbackServerContext* call) {
  grpc_call_ref(call->c_call());
  const std::shared_ptr<grpc_call> shared(call->c_call(), grpc_call_unref);
  return [shared](const absl::Status& why) {
    grpc_call_cancel_with_status(shared.get(), static_cast<grpc_status_code>(why.code()),
                                 std::string(why.message()).c_str(), nullptr);
  };
}

grpc::ServerUnaryReactor* NewGenerateCall(const ServiceContext& context,
                                          grpc::CallbackServerContext* call,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) {
  auto* reactor = new UnaryCall(context, call, request, response);  // deletes itself in OnDone
  reactor->Begin();
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* NewGenerateStreamCall(const ServiceContext& context,
                                                                  grpc::CallbackServerContext* call,
                                                                  const grpc::ByteBuffer* request) {
  auto* reactor = new StreamCall(context, call, request);  // deletes itself in OnDone
  reactor->Begin();
  return reactor;
}

}  // namespace shoal::router
