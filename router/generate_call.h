#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "router/engine.h"
#include "router/frontend.h"
#include "router/outboxes.h"
#include "router/request_stream.h"
#include "router/running_requests.h"
#include "router/work_lanes.h"
#include "shoal/v1/inference.pb.h"

namespace shoal::router {

// What the calls of one router share. Everything pointed to outlives them. Called by any thread.
struct ServiceContext {
  Engine* engine = nullptr;
  RunningRequests* requests = nullptr;
  const Frontend* frontend = nullptr;
  WorkLanes* lanes = nullptr;
  Outboxes* outboxes = nullptr;
  std::function<absl::Time()> clock;
  RequestStream::Options stream_options = {};
};

// The model that `context` serves; UNAVAILABLE (retry) while there is none.
absl::StatusOr<std::shared_ptr<const ServedModel>> CurrentModel(const ServiceContext& context);

// Ends `call` with `why` at once, whatever is being written to its client. The function may be
// called after the call has ended.
Outboxes::EndCall EndOf(grpc::CallbackServerContext* call);

// Serves one call of InferenceService, whose messages are bytes: of a v1::GenerateRequest and
// v1::GenerateResponse, of a v1::GenerateStreamRequest and v1::GenerateStreamResponse. Deletes
// itself when gRPC is done with it. `request` and `call` live as long as gRPC says: until OnDone.
// `context` outlives the call.
grpc::ServerUnaryReactor* NewGenerateCall(const ServiceContext& context,
                                          grpc::CallbackServerContext* call,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response);
grpc::ServerWriteReactor<grpc::ByteBuffer>* NewGenerateStreamCall(const ServiceContext& context,
                                                                  grpc::CallbackServerContext* call,
                                                                  const grpc::ByteBuffer* request);

}  // namespace shoal::router
