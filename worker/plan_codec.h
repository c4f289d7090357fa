#pragma once

#include "absl/status/statusor.h"
#include "base/step_plan.h"
#include "shoal/worker/v1/worker.pb.h"

namespace shoal::worker {

// Between the messages of the wire and the engine's structs. INVALID_ARGUMENT for what no struct
// can hold (an unknown enum, ids and values of a bias that differ in number) and for sampling
// parameters that are no numbers or out of range: temperature and min_p below 0, top_p and
// repetition_penalty not above 0, NaN or infinity in any. Whether a plan fits the rank is
// SequenceTable::Validate's to say.

absl::Status DecodePlan(const v1::StepPlan& message, base::StepPlan* plan);

void EncodeOutput(const base::RowOutput& output, v1::RowOutput* message);

}  // namespace shoal::worker
