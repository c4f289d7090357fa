#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "router/control/plan.h"
#include "shoal/worker/v1/worker.pb.h"

namespace shoal::router {

// Which incarnation of a group a message belongs to: `counter` grows for one owner, owners differ.
struct GroupEpoch {
  std::string owner_id;
  uint64_t counter = 0;

  friend bool operator==(const GroupEpoch&, const GroupEpoch&) = default;
};

void ToProto(const GroupEpoch& epoch, worker::v1::Epoch* proto);

// `prompt_logprobs` is no part of it: rows say what they put out.
void ToProto(const SamplingParams& params, worker::v1::Sampling* out);
SamplingParams FromProto(const worker::v1::Sampling& proto);

void ToProto(const RowOutput& output, worker::v1::RowOutput* out);

// Fills `request` (reused from step to step) with the plan that every rank gets.
void ToProto(const StepPlan& plan, const GroupEpoch& epoch, worker::v1::ExecuteRequest* request);

// One rank's answer to a step.
struct RankReply {
  GroupEpoch epoch;
  uint64_t state_hash = 0;
  uint64_t token_hash = 0;
  StepResult result;
  uint64_t compute_ns = 0;  // sampling included
  uint64_t wait_peers_ns = 0;
};

RankReply FromProto(const worker::v1::ExecuteResponse& response);

}  // namespace shoal::router
