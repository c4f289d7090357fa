#pragma once

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace shoal::router {

// To the whole nanosecond below. REQUIRES: `duration` is finite and not negative.
void ToProto(absl::Duration duration, google::protobuf::Duration* proto);

// Likewise. REQUIRES: `time` is finite.
void ToProto(absl::Time time, google::protobuf::Timestamp* proto);

}  // namespace shoal::router
