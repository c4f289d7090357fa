#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace shoal::router {

// Errors at the gRPC edge. Inside the router an error is an absl::Status; what a client needs
// beyond code and message (google.rpc.BadRequest, google.rpc.RetryInfo) travels as its payloads,
// keyed by type URL, and leaves as the standard `grpc-status-details-bin` trailer.

// Collects what is wrong with the fields of one request, so that a client sees all of it at once.
class FieldViolations {
 public:
  // `field`: path from the request's root, as "sampling.temperature". `description`: value, limit
  // and what to change.
  void Add(absl::string_view field, absl::string_view description);

  bool empty() const { return fields_.empty(); }

  // OK when empty, else INVALID_ARGUMENT with a BadRequest that lists (the first 16 of) them.
  absl::Status ToStatus() const;

 private:
  struct Violation {
    std::string field;
    std::string description;
  };
  std::vector<Violation> fields_;  // the first 16
  size_t num_left_out_ = 0;        // that came after them
};

// INVALID_ARGUMENT for a single field.
absl::Status InvalidField(absl::string_view field, absl::string_view description);

// `status` with google.rpc.RetryInfo: the client may try again after `delay`.
absl::Status WithRetryAfter(absl::Status status, absl::Duration delay);

// The delay of WithRetryAfter, or absl::InfiniteDuration() when there is none.
absl::Duration RetryAfter(const absl::Status& status);

// UNAVAILABLE and RESOURCE_EXHAUSTED get RetryInfo if they have none, of their RetryHint
// (control/retry_hint.h) or else a second; other codes, and what would be refused again, are left
// alone.
// For what passes by itself: a full queue, a group that is loading or comes back.
absl::Status Retryable(absl::Status status);

// For the end of a call. Adds the trailer `grpc-retry-pushback-ms` when the status has RetryInfo,
// which gRPC clients with a retry policy obey. REQUIRES: before Finish of the call.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::CallbackServerContext* context);

// Of a call to a rank. The code is kept; `peer` leads the message.
absl::Status FromGrpcStatus(const grpc::Status& status, absl::string_view peer);

}  // namespace shoal::router
