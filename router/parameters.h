#pragma once

#include <cstdint>
#include <vector>

#include "router/control/request.h"
#include "router/rpc_status.h"
#include "router/served_model.h"
#include "shoal/v1/inference.pb.h"

namespace shoal::router {

// Checks of a request's parameters against the limits that shoal/v1/common.proto and
// inference.proto state. Each adds what is wrong to `violations`; its result counts only if nothing
// was added. NaN and infinities are outside every range.

// Everything but the seed, `choice`, min_tokens, end_ids and logprobs.
SamplingParams CheckSampling(const v1::SamplingParams& sampling, const ServedModel& model,
                             FieldViolations* violations);

void CheckStop(const v1::StopParams& stop, const ServedModel& model, FieldViolations* violations);

// n, top_logprobs, priority, request_id, cache_salt, truncate_prompt_tokens.
void CheckRequestFields(const v1::GenerateRequest& request, FieldViolations* violations);

// Of a resumed stream: ids in the vocabulary, one choice, a seed unless greedy, and no token that
// would have ended the stream before its last.
void CheckResume(const v1::GenerateRequest& request, const ServedModel& model,
                 FieldViolations* violations);

}  // namespace shoal::router
