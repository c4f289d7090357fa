#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/control/group_control.h"
#include "shoal/history/v1/history.pb.h"

namespace shoal::router {

// The calls of a GroupControl as messages, and back: what is read is what was written, to the
// nanosecond. Infinite times are absent fields.

history::v1::Header ToProto(const GroupControlOptions& options);
// Errors: INVALID_ARGUMENT: no router has such options.
absl::StatusOr<GroupControlOptions> FromProto(const history::v1::Header& header);

void ToProto(const Request& request, history::v1::Sequence* sequence);
Request FromProto(const history::v1::Sequence& sequence);

// REQUIRES: what a rank does; not PlanMade, ResultRefused or TimerFired.
void ToProto(const GroupEvent& event, history::v1::RankEvent* proto);
// Errors: INVALID_ARGUMENT: no event, of a rank that is not below `num_ranks`, or with limits that
// no rank has.
absl::StatusOr<GroupEvent> FromProto(const history::v1::RankEvent& proto, uint32_t num_ranks);

void ToProto(const absl::Status& status, history::v1::Status* proto);
absl::Status FromProto(const history::v1::Status& proto);

void ToProto(const SendStep& step, history::v1::Planning* proto);

}  // namespace shoal::router
