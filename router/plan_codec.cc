#include "router/plan_codec.h"

#include <algorithm>
#include <vector>

namespace shoal::router {
namespace {

namespace wire = worker::v1;

template <typename Repeated>
void Assign(const std::vector<uint32_t>& values, Repeated* out) {
  out->Assign(values.begin(), values.end());
}

void FillStart(const SequenceStart& start, wire::SequenceStart* out) {
  out->set_slot(start.slot);
  Assign(start.token_ids, out->mutable_token_ids());
  out->set_num_prompt_tokens(start.num_prompt_tokens);
  out->set_num_cached_tokens(start.num_cached_tokens);
  Assign(start.block_ids, out->mutable_block_ids());
  ToProto(start.sampling, out->mutable_sampling());
}

wire::StepRow::Source ToProto(StepRow::Source source) {
  switch (source) {
    case StepRow::Source::kLog:
      return wire::StepRow::SOURCE_LOG;
    case StepRow::Source::kLastSample:
      return wire::StepRow::SOURCE_LAST_SAMPLE;
    case StepRow::Source::kToken:
      return wire::StepRow::SOURCE_TOKEN;
  }
  return wire::StepRow::SOURCE_UNSPECIFIED;
}

wire::StepRow::Outputs ToProto(StepRow::Outputs outputs) {
  switch (outputs) {
    case StepRow::Outputs::kNone:
      return wire::StepRow::OUTPUTS_NONE;
    case StepRow::Outputs::kLast:
      return wire::StepRow::OUTPUTS_LAST;
    case StepRow::Outputs::kAll:
      return wire::StepRow::OUTPUTS_ALL;
  }
  return wire::StepRow::OUTPUTS_UNSPECIFIED;
}

wire::BlockMove::Kind ToProto(BlockMove::Kind kind) {
  switch (kind) {
    case BlockMove::Kind::kCopy:
      return wire::BlockMove::KIND_COPY;
  }
  return wire::BlockMove::KIND_UNSPECIFIED;
}

void FillLogprobs(const PositionLogprobs& logprobs, wire::PositionLogprobs* out) {
  out->mutable_chosen()->set_token_id(logprobs.chosen.token_id);
  out->mutable_chosen()->set_logprob(logprobs.chosen.logprob);
  for (const TokenLogprob& top : logprobs.top) {
    wire::TokenLogprob* top_out = out->add_top();
    top_out->set_token_id(top.token_id);
    top_out->set_logprob(top.logprob);
  }
}

PositionLogprobs FromProto(const wire::PositionLogprobs& proto) {
  PositionLogprobs logprobs;
  logprobs.chosen = {.token_id = proto.chosen().token_id(), .logprob = proto.chosen().logprob()};
  for (const wire::TokenLogprob& top : proto.top()) {
    logprobs.top.push_back({.token_id = top.token_id(), .logprob = top.logprob()});
  }
  return logprobs;
}

RowOutput FromProto(const wire::RowOutput& proto) {
  RowOutput output;
  output.slot = proto.slot();
  output.token_ids.assign(proto.token_ids().begin(), proto.token_ids().end());
  for (const auto& logprobs : proto.logprobs()) output.logprobs.push_back(FromProto(logprobs));
  for (const auto& logprobs : proto.prompt_logprobs()) {
    output.prompt_logprobs.push_back(FromProto(logprobs));
  }
  output.error = proto.error();
  return output;
}

}  // namespace

void ToProto(const SamplingParams& params, wire::Sampling* out) {
  out->set_temperature(params.temperature);
  out->set_top_p(params.top_p);
  out->set_top_k(params.top_k);
  out->set_min_p(params.min_p);
  out->set_repetition_penalty(params.repetition_penalty);
  out->set_presence_penalty(params.presence_penalty);
  out->set_frequency_penalty(params.frequency_penalty);
  out->set_seed(params.seed);
  out->set_choice(params.choice);
  for (const auto& [id, value] : params.logit_bias) {
    out->add_bias_ids(id);
    out->add_bias_values(value);
  }
  out->set_min_tokens(params.min_tokens);
  Assign(params.end_ids, out->mutable_end_ids());
  out->set_top_logprobs(params.top_logprobs);
}

SamplingParams FromProto(const wire::Sampling& proto) {
  SamplingParams params;
  params.temperature = proto.temperature();
  params.top_p = proto.top_p();
  params.top_k = proto.top_k();
  params.min_p = proto.min_p();
  params.repetition_penalty = proto.repetition_penalty();
  params.presence_penalty = proto.presence_penalty();
  params.frequency_penalty = proto.frequency_penalty();
  params.seed = proto.seed();
  params.choice = proto.choice();
  const int num_biases = std::min(proto.bias_ids_size(), proto.bias_values_size());
  for (int i = 0; i < num_biases; ++i) {
    params.logit_bias.emplace_back(proto.bias_ids(i), proto.bias_values(i));
  }
  params.min_tokens = proto.min_tokens();
  params.end_ids.assign(proto.end_ids().begin(), proto.end_ids().end());
  params.top_logprobs = proto.top_logprobs();
  return params;
}

void ToProto(const RowOutput& output, wire::RowOutput* out) {
  out->set_slot(output.slot);
  Assign(output.token_ids, out->mutable_token_ids());
  for (const PositionLogprobs& logprobs : output.logprobs) {
    FillLogprobs(logprobs, out->add_logprobs());
  }
  for (const PositionLogprobs& logprobs : output.prompt_logprobs) {
    FillLogprobs(logprobs, out->add_prompt_logprobs());
  }
  out->set_error(output.error);
}

void ToProto(const GroupEpoch& epoch, wire::Epoch* proto) {
  proto->set_owner_id(epoch.owner_id);
  proto->set_counter(epoch.counter);
}

void ToProto(const StepPlan& plan, const GroupEpoch& epoch, wire::ExecuteRequest* request) {
  request->Clear();
  wire::StepPlan* out = request->mutable_plan();
  ToProto(epoch, out->mutable_epoch());
  out->set_step(plan.step);
  for (const SequenceStart& start : plan.starts) FillStart(start, out->add_starts());
  for (const StepRow& row : plan.rows) {
    wire::StepRow* row_out = out->add_rows();
    row_out->set_slot(row.slot);
    row_out->set_num_tokens(row.num_tokens);
    row_out->set_source(ToProto(row.source));
    row_out->set_token_id(row.token_id);
    row_out->set_outputs(ToProto(row.outputs));
    Assign(row.new_block_ids, row_out->mutable_new_block_ids());
  }
  Assign(plan.ended_slots, out->mutable_ended_slots());
  for (const BlockMove& move : plan.block_moves) {
    wire::BlockMove* move_out = out->add_block_moves();
    move_out->set_kind(ToProto(move.kind));
    move_out->set_source_block(move.source_block);
    move_out->set_target_block(move.target_block);
  }
}

RankReply FromProto(const wire::ExecuteResponse& response) {
  RankReply reply;
  reply.epoch = {.owner_id = response.epoch().owner_id(), .counter = response.epoch().counter()};
  reply.state_hash = response.state_hash();
  reply.token_hash = response.token_hash();
  reply.result.step = response.step();
  reply.result.outputs.reserve(response.outputs_size());
  for (const wire::RowOutput& output : response.outputs()) {
    reply.result.outputs.push_back(FromProto(output));
  }
  reply.compute_ns = response.timings().compute_ns() + response.timings().sample_ns();
  reply.wait_peers_ns = response.timings().wait_peers_ns();
  return reply;
}

}  // namespace shoal::router
