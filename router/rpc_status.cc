#include "router/rpc_status.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "router/control/retry_hint.h"
#include "router/proto_time.h"

namespace shoal::router {
namespace {

constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

// Status details are metadata, for which peers allow 8 KiB in all.
constexpr size_t kMaxViolations = 16;
constexpr size_t kMaxDescriptionBytes = 256;
constexpr size_t kMaxMessageBytes = 1024;

constexpr absl::Duration kRetryDelay = absl::Seconds(1);

// Cuts before a character that would not fit, so that the result stays UTF-8.
std::string Shorten(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "...");
}

}  // namespace

void FieldViolations::Add(absl::string_view field, absl::string_view description) {
  if (fields_.size() >= kMaxViolations) {
    ++num_left_out_;
    return;
  }
  fields_.push_back({std::string(field), Shorten(description, kMaxDescriptionBytes)});
}

absl::Status FieldViolations::ToStatus() const {
  if (fields_.empty()) return absl::OkStatus();
  google::rpc::BadRequest details;
  for (const Violation& violation : fields_) {
    auto* field = details.add_field_violations();
    field->set_field(violation.field);
    field->set_description(violation.description);
  }
  std::string message = absl::StrCat(fields_[0].field, ": ", fields_[0].description);
  if (fields_.size() > 1) {
    absl::StrAppend(&message, " (and ", fields_.size() - 1 + num_left_out_, " more faults)");
  }
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kBadRequestUrl, absl::Cord(details.SerializeAsString()));
  return status;
}

absl::Status InvalidField(absl::string_view field, absl::string_view description) {
  FieldViolations violations;
  violations.Add(field, description);
  return violations.ToStatus();
}

absl::Status WithRetryAfter(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo info;
  ToProto(delay, info.mutable_retry_delay());
  status.SetPayload(kRetryInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

absl::Duration RetryAfter(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryInfoUrl);
  google::rpc::RetryInfo info;
  if (!payload.has_value() || !info.ParseFromString(std::string(*payload))) {
    return absl::InfiniteDuration();
  }
  return absl::Seconds(info.retry_delay().seconds()) +
         absl::Nanoseconds(info.retry_delay().nanos());
}

absl::Status Retryable(absl::Status status) {
  const bool passes = status.code() == absl::StatusCode::kUnavailable ||
                      status.code() == absl::StatusCode::kResourceExhausted;
  if (!passes || RetryAfter(status) != absl::InfiniteDuration()) return status;
  const absl::Duration delay = RetryHint(status).value_or(kRetryDelay);
  status.ErasePayload(kRetryHint);
  if (delay == absl::InfiniteDuration()) return status;
  return WithRetryAfter(std::move(status), std::max(delay, absl::Milliseconds(1)));
}

grpc::Status ToGrpcStatus(const absl::Status& status, grpc::CallbackServerContext* context) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = Shorten(status.message(), kMaxMessageBytes);
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  status.ForEachPayload([&details](absl::string_view url, const absl::Cord& payload) {
    auto* any = details.add_details();
    any->set_type_url(std::string(url));
    any->set_value(std::string(payload));
  });
  const absl::Duration retry_after = RetryAfter(status);
  if (retry_after != absl::InfiniteDuration()) {
    context->AddTrailingMetadata("grpc-retry-pushback-ms",
                                 absl::StrCat(absl::ToInt64Milliseconds(retry_after)));
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      details.details().empty() ? "" : details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status, absl::string_view peer) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(peer, ": ", status.error_message()));
}

}  // namespace shoal::router
