#include "router/answer_call.h"

#include "router/rpc_status.h"

namespace shoal::router {

void AnswerCall::Begin(const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  const absl::Status submitted = context_.lanes->Submit(
      request->Length(), [this, request, response](const absl::Status& turn) {
        const absl::Status status = turn.ok() ? Run(*request, response) : turn;
        if (status.ok()) NoteWrite(response->Length());
        Finish(ToGrpcStatus(status, call_));
      });
  if (!submitted.ok()) Finish(ToGrpcStatus(submitted, call_));
}

absl::Status AnswerCall::Run(const grpc::ByteBuffer& request, grpc::ByteBuffer* response) {
  if (is_cancelled_.load()) return absl::CancelledError("the client cancelled the call");
  return answer_(request, response);
}

void AnswerCall::NoteWrite(size_t bytes) {
  if (bytes <= WorkLanes::kMaxInlineBytes) return;
  outbox_ = context_.outboxes->Open(EndOf(call_));
  outbox_->BeginWrite(bytes);
}

}  // namespace shoal::router
