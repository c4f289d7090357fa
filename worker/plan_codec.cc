#include "worker/plan_codec.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace shoal::worker {
namespace {

absl::Status CheckSampling(const base::SamplingParams& params) {
  const float values[] = {params.temperature,
                          params.top_p,
                          params.min_p,
                          params.repetition_penalty,
                          params.presence_penalty,
                          params.frequency_penalty};
  const bool is_finite = std::all_of(std::begin(values), std::end(values),
                                     [](float value) { return std::isfinite(value); });
  if (!is_finite || params.temperature < 0 || params.min_p < 0 || params.top_p <= 0 ||
      params.repetition_penalty <= 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sampling with temperature %g, top_p %g, min_p %g, repetition_penalty %g, "
                        "presence_penalty %g, frequency_penalty %g",
                        params.temperature, params.top_p, params.min_p, params.repetition_penalty,
                        params.presence_penalty, params.frequency_penalty));
  }
  for (const auto& [id, value] : params.logit_bias) {
    if (std::isfinite(value)) continue;
    return absl::InvalidArgumentError(absl::StrFormat("bias of token %d is %g", id, value));
  }
  return absl::OkStatus();
}

absl::Status DecodeSampling(const v1::Sampling& message, base::SamplingParams* params) {
  params->temperature = message.temperature();
  params->top_p = message.top_p();
  params->top_k = message.top_k();
  params->min_p = message.min_p();
  params->repetition_penalty = message.repetition_penalty();
  params->presence_penalty = message.presence_penalty();
  params->frequency_penalty = message.frequency_penalty();
  params->seed = message.seed();
  params->choice = message.choice();
  params->min_tokens = message.min_tokens();
  params->top_logprobs = message.top_logprobs();
  params->end_ids.assign(message.end_ids().begin(), message.end_ids().end());
  if (message.bias_ids_size() != message.bias_values_size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d bias ids but %d bias values", message.bias_ids_size(), message.bias_values_size()));
  }
  params->logit_bias.clear();
  for (int i = 0; i < message.bias_ids_size(); ++i) {
    params->logit_bias.emplace_back(message.bias_ids(i), message.bias_values(i));
  }
  return CheckSampling(*params);
}

absl::Status DecodeRow(const v1::StepRow& message, base::StepRow* row) {
  row->slot = message.slot();
  row->num_tokens = message.num_tokens();
  row->token_id = message.token_id();
  row->new_block_ids.assign(message.new_block_ids().begin(), message.new_block_ids().end());
  switch (message.source()) {
    case v1::StepRow::SOURCE_LOG:
      row->source = base::StepRow::Source::kLog;
      break;
    case v1::StepRow::SOURCE_LAST_SAMPLE:
      row->source = base::StepRow::Source::kLastSample;
      break;
    case v1::StepRow::SOURCE_TOKEN:
      row->source = base::StepRow::Source::kToken;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("slot %d has row source %d", row->slot, message.source()));
  }
  switch (message.outputs()) {
    case v1::StepRow::OUTPUTS_NONE:
      row->outputs = base::StepRow::Outputs::kNone;
      break;
    case v1::StepRow::OUTPUTS_LAST:
      row->outputs = base::StepRow::Outputs::kLast;
      break;
    case v1::StepRow::OUTPUTS_ALL:
      row->outputs = base::StepRow::Outputs::kAll;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("slot %d has row outputs %d", row->slot, message.outputs()));
  }
  return absl::OkStatus();
}

void EncodeLogprobs(const base::PositionLogprobs& logprobs, v1::PositionLogprobs* message) {
  message->mutable_chosen()->set_token_id(logprobs.chosen.token_id);
  message->mutable_chosen()->set_logprob(logprobs.chosen.logprob);
  for (const base::TokenLogprob& top : logprobs.top) {
    v1::TokenLogprob* added = message->add_top();
    added->set_token_id(top.token_id);
    added->set_logprob(top.logprob);
  }
}

}  // namespace

absl::Status DecodePlan(const v1::StepPlan& message, base::StepPlan* plan) {
  plan->step = message.step();
  plan->ended_slots.assign(message.ended_slots().begin(), message.ended_slots().end());
  plan->block_moves.clear();
  for (const v1::BlockMove& move : message.block_moves()) {
    if (move.kind() != v1::BlockMove::KIND_COPY) {
      return absl::InvalidArgumentError(absl::StrFormat("block move of kind %d", move.kind()));
    }
    plan->block_moves.push_back(
        {base::BlockMove::Kind::kCopy, move.source_block(), move.target_block()});
  }
  plan->starts.resize(message.starts_size());
  for (int i = 0; i < message.starts_size(); ++i) {
    const v1::SequenceStart& from = message.starts(i);
    base::SequenceStart& start = plan->starts[i];
    start.slot = from.slot();
    start.token_ids.assign(from.token_ids().begin(), from.token_ids().end());
    start.num_prompt_tokens = from.num_prompt_tokens();
    start.num_cached_tokens = from.num_cached_tokens();
    start.block_ids.assign(from.block_ids().begin(), from.block_ids().end());
    SHOAL_RETURN_IF_ERROR(DecodeSampling(from.sampling(), &start.sampling));
  }
  plan->rows.resize(message.rows_size());
  for (int i = 0; i < message.rows_size(); ++i) {
    SHOAL_RETURN_IF_ERROR(DecodeRow(message.rows(i), &plan->rows[i]));
  }
  return absl::OkStatus();
}

void EncodeOutput(const base::RowOutput& output, v1::RowOutput* message) {
  message->set_slot(output.slot);
  message->mutable_token_ids()->Add(output.token_ids.begin(), output.token_ids.end());
  for (const auto& logprobs : output.logprobs) EncodeLogprobs(logprobs, message->add_logprobs());
  for (const auto& logprobs : output.prompt_logprobs) {
    EncodeLogprobs(logprobs, message->add_prompt_logprobs());
  }
  message->set_error(output.error);
}

}  // namespace shoal::worker
