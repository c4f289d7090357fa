#pragma once

#include "base/step_plan.h"

namespace shoal::router {

// The plan's structs under the router's own name.
using base::BlockMove;
using base::PositionLogprobs;
using base::RowOutput;
using base::SamplingParams;
using base::SequenceStart;
using base::StepPlan;
using base::StepResult;
using base::StepRow;
using base::TokenLogprob;

}  // namespace shoal::router
