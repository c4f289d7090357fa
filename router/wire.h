#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace shoal::router {

// Messages of clients as bytes. The services take raw bytes from gRPC, which would parse them on
// the threads that serve all connections and answer broken ones UNIMPLEMENTED without a word.

// INVALID_ARGUMENT for bytes that are no message of this type, a string that is not UTF-8 included.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite* message);

// In one piece.
void SerializeMessage(const google::protobuf::MessageLite& message, grpc::ByteBuffer* bytes);

}  // namespace shoal::router
