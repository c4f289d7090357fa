#include "router/wire.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"

namespace shoal::router {

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite* message) {
  grpc::ByteBuffer copy(bytes);  // of references
  grpc::ProtoBufferReader reader(&copy);
  if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ", bytes.Length(), " bytes of the request are no ", message->GetTypeName(),
                   ": its protobuf is broken, or a string in it is not UTF-8"));
}

void SerializeMessage(const google::protobuf::MessageLite& message, grpc::ByteBuffer* bytes) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  grpc::ByteBuffer(&slice, 1).Swap(bytes);
}

}  // namespace shoal::router
