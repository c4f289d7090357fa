#pragma once

#include "absl/status/statusor.h"
#include "base/step_plan.h"
#include "shoal/worker/v1/worker.pb.h"

namespace shoal::worker {

// Between the messages of the wire and the engine's structs. Values that no struct can hold (an
// unknown enum) are INVALID_ARGUMENT; whether a plan fits the rank is SequenceTable::Validate's to
// say.

absl::Status DecodePlan(const v1::StepPlan& message, base::StepPlan* plan);

void EncodeOutput(const base::RowOutput& output, v1::RowOutput* message);

}  // namespace shoal::worker
