#include "router/plan_codec.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::router {
namespace {

using ::testing::ElementsAre;
namespace wire = worker::v1;

TEST(PlanCodecTest, APlanArrivesWithEveryField) {
  StepPlan plan;
  plan.step = 7;
  plan.starts.push_back({.slot = 3,
                         .token_ids = {5, 6, 7},
                         .num_prompt_tokens = 2,
                         .num_cached_tokens = 1,
                         .block_ids = {9, 8},
                         .sampling = {}});
  SamplingParams& sampling = plan.starts[0].sampling;
  sampling.temperature = 0.5f;
  sampling.top_p = 0.25f;
  sampling.top_k = 40;
  sampling.min_p = 0.125f;
  sampling.repetition_penalty = 1.5f;
  sampling.presence_penalty = -1;
  sampling.frequency_penalty = 2;
  sampling.seed = ~uint64_t{0};
  sampling.choice = 4;
  sampling.logit_bias = {{1, -2.0f}, {3, 4.0f}};
  sampling.end_ids = {2, 11};
  sampling.min_tokens = 6;
  sampling.top_logprobs = -1;
  plan.rows.push_back({.slot = 3,
                       .num_tokens = 2,
                       .source = StepRow::Source::kLog,
                       .token_id = 0,
                       .outputs = StepRow::Outputs::kAll,
                       .new_block_ids = {}});
  plan.rows.push_back({.slot = 0,
                       .num_tokens = 1,
                       .source = StepRow::Source::kLastSample,
                       .token_id = 0,
                       .outputs = StepRow::Outputs::kLast,
                       .new_block_ids = {12}});
  plan.rows.push_back({.slot = 1,
                       .num_tokens = 16,
                       .source = StepRow::Source::kLog,
                       .token_id = 0,
                       .outputs = StepRow::Outputs::kNone,
                       .new_block_ids = {}});
  plan.rows.push_back({.slot = 2,
                       .num_tokens = 1,
                       .source = StepRow::Source::kToken,
                       .token_id = 77,
                       .outputs = StepRow::Outputs::kLast,
                       .new_block_ids = {}});
  plan.ended_slots = {2, 5};
  plan.block_moves.push_back(
      {.kind = BlockMove::Kind::kCopy, .source_block = 1, .target_block = 2});

  wire::ExecuteRequest request;
  request.mutable_plan()->add_ended_slots(99);  // of the step before: the message is reused
  ToProto(plan, {.owner_id = "me", .counter = 12}, &request);

  const wire::StepPlan& out = request.plan();
  EXPECT_EQ(out.epoch().owner_id(), "me");
  EXPECT_EQ(out.epoch().counter(), 12u);
  EXPECT_EQ(out.step(), 7u);
  ASSERT_EQ(out.starts_size(), 1);
  EXPECT_EQ(out.starts(0).slot(), 3u);
  EXPECT_THAT(out.starts(0).token_ids(), ElementsAre(5, 6, 7));
  EXPECT_EQ(out.starts(0).num_prompt_tokens(), 2u);
  EXPECT_EQ(out.starts(0).num_cached_tokens(), 1u);
  EXPECT_THAT(out.starts(0).block_ids(), ElementsAre(9, 8));
  const wire::Sampling& s = out.starts(0).sampling();
  EXPECT_EQ(s.temperature(), 0.5f);
  EXPECT_EQ(s.top_p(), 0.25f);
  EXPECT_EQ(s.top_k(), 40);
  EXPECT_EQ(s.min_p(), 0.125f);
  EXPECT_EQ(s.repetition_penalty(), 1.5f);
  EXPECT_EQ(s.presence_penalty(), -1);
  EXPECT_EQ(s.frequency_penalty(), 2);
  EXPECT_EQ(s.seed(), ~uint64_t{0});
  EXPECT_EQ(s.choice(), 4u);
  EXPECT_THAT(s.bias_ids(), ElementsAre(1, 3));
  EXPECT_THAT(s.bias_values(), ElementsAre(-2.0f, 4.0f));
  EXPECT_THAT(s.end_ids(), ElementsAre(2, 11));
  EXPECT_EQ(s.min_tokens(), 6u);
  EXPECT_EQ(s.top_logprobs(), -1);
  ASSERT_EQ(out.rows_size(), 4);
  EXPECT_EQ(out.rows(0).num_tokens(), 2u);
  EXPECT_EQ(out.rows(0).source(), wire::StepRow::SOURCE_LOG);
  EXPECT_EQ(out.rows(0).outputs(), wire::StepRow::OUTPUTS_ALL);
  EXPECT_EQ(out.rows(1).source(), wire::StepRow::SOURCE_LAST_SAMPLE);
  EXPECT_EQ(out.rows(1).outputs(), wire::StepRow::OUTPUTS_LAST);
  EXPECT_THAT(out.rows(1).new_block_ids(), ElementsAre(12));
  EXPECT_EQ(out.rows(2).outputs(), wire::StepRow::OUTPUTS_NONE);
  EXPECT_EQ(out.rows(3).source(), wire::StepRow::SOURCE_TOKEN);
  EXPECT_EQ(out.rows(3).token_id(), 77u);
  EXPECT_THAT(out.ended_slots(), ElementsAre(2, 5));
  ASSERT_EQ(out.block_moves_size(), 1);
  EXPECT_EQ(out.block_moves(0).kind(), wire::BlockMove::KIND_COPY);
  EXPECT_EQ(out.block_moves(0).target_block(), 2u);
}

TEST(PlanCodecTest, AReplyArrivesWithEveryField) {
  wire::ExecuteResponse response;
  response.mutable_epoch()->set_owner_id("me");
  response.mutable_epoch()->set_counter(2);
  response.set_step(5);
  response.set_state_hash(~uint64_t{0});
  response.set_token_hash(3);
  wire::RowOutput* output = response.add_outputs();
  output->set_slot(4);
  output->add_token_ids(77);
  wire::PositionLogprobs* logprobs = output->add_logprobs();
  logprobs->mutable_chosen()->set_token_id(77);
  logprobs->mutable_chosen()->set_logprob(-1.5f);
  logprobs->add_top()->set_token_id(78);
  output->add_prompt_logprobs()->mutable_chosen()->set_token_id(6);
  response.add_outputs()->set_error("non-finite logits");
  response.mutable_timings()->set_compute_ns(10);
  response.mutable_timings()->set_wait_peers_ns(20);

  const RankReply reply = FromProto(response);
  EXPECT_EQ(reply.epoch, (GroupEpoch{.owner_id = "me", .counter = 2}));
  EXPECT_EQ(reply.result.step, 5u);
  EXPECT_EQ(reply.state_hash, ~uint64_t{0});
  EXPECT_EQ(reply.token_hash, 3u);
  ASSERT_EQ(reply.result.outputs.size(), 2u);
  const RowOutput& row = reply.result.outputs[0];
  EXPECT_EQ(row.slot, 4u);
  EXPECT_THAT(row.token_ids, ElementsAre(77));
  ASSERT_EQ(row.logprobs.size(), 1u);
  EXPECT_EQ(row.logprobs[0].chosen.logprob, -1.5f);
  EXPECT_EQ(row.logprobs[0].top[0].token_id, 78u);
  EXPECT_EQ(row.prompt_logprobs[0].chosen.token_id, 6u);
  EXPECT_EQ(reply.result.outputs[1].error, "non-finite logits");
  EXPECT_EQ(reply.compute_ns, 10u);
  EXPECT_EQ(reply.wait_peers_ns, 20u);
}

}  // namespace
}  // namespace shoal::router
