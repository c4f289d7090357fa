#include "worker/plan_codec.h"

#include <limits>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::StepPlan FullPlan() {
  v1::StepPlan plan;
  plan.set_step(9);
  plan.add_ended_slots(3);
  v1::BlockMove* move = plan.add_block_moves();
  move->set_kind(v1::BlockMove::KIND_COPY);
  move->set_source_block(4);
  move->set_target_block(5);
  v1::SequenceStart* start = plan.add_starts();
  start->set_slot(1);
  start->add_token_ids(10);
  start->add_token_ids(11);
  start->set_num_prompt_tokens(2);
  start->set_num_cached_tokens(1);
  start->add_block_ids(7);
  v1::Sampling* sampling = start->mutable_sampling();
  sampling->set_temperature(0.5f);
  sampling->set_top_p(0.9f);
  sampling->set_top_k(40);
  sampling->set_min_p(0.1f);
  sampling->set_repetition_penalty(1.1f);
  sampling->set_presence_penalty(0.2f);
  sampling->set_frequency_penalty(0.3f);
  sampling->set_seed(0xfedcba9876543210u);
  sampling->set_choice(2);
  sampling->add_bias_ids(8);
  sampling->add_bias_values(-1.5f);
  sampling->set_min_tokens(6);
  sampling->add_end_ids(2);
  sampling->set_top_logprobs(5);
  v1::StepRow* row = plan.add_rows();
  row->set_slot(1);
  row->set_num_tokens(1);
  row->set_source(v1::StepRow::SOURCE_LAST_SAMPLE);
  row->set_outputs(v1::StepRow::OUTPUTS_ALL);
  row->add_new_block_ids(12);
  return plan;
}

TEST(PlanCodecTest, EveryFieldOfAPlanArrives) {
  base::StepPlan plan;
  ASSERT_TRUE(DecodePlan(FullPlan(), &plan).ok());
  EXPECT_EQ(plan.step, 9u);
  EXPECT_THAT(plan.ended_slots, ElementsAre(3));
  ASSERT_EQ(plan.block_moves.size(), 1u);
  EXPECT_EQ(plan.block_moves[0].source_block, 4u);
  EXPECT_EQ(plan.block_moves[0].target_block, 5u);
  ASSERT_EQ(plan.starts.size(), 1u);
  const base::SequenceStart& start = plan.starts[0];
  EXPECT_EQ(start.slot, 1u);
  EXPECT_THAT(start.token_ids, ElementsAre(10, 11));
  EXPECT_EQ(start.num_prompt_tokens, 2u);
  EXPECT_EQ(start.num_cached_tokens, 1u);
  EXPECT_THAT(start.block_ids, ElementsAre(7));
  EXPECT_EQ(start.sampling.temperature, 0.5f);
  EXPECT_EQ(start.sampling.top_p, 0.9f);
  EXPECT_EQ(start.sampling.top_k, 40);
  EXPECT_EQ(start.sampling.min_p, 0.1f);
  EXPECT_EQ(start.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(start.sampling.presence_penalty, 0.2f);
  EXPECT_EQ(start.sampling.frequency_penalty, 0.3f);
  EXPECT_EQ(start.sampling.seed, 0xfedcba9876543210u);
  EXPECT_EQ(start.sampling.choice, 2u);
  EXPECT_THAT(start.sampling.logit_bias, ElementsAre(std::pair<uint32_t, float>(8, -1.5f)));
  EXPECT_EQ(start.sampling.min_tokens, 6u);
  EXPECT_THAT(start.sampling.end_ids, ElementsAre(2));
  EXPECT_EQ(start.sampling.top_logprobs, 5);
  ASSERT_EQ(plan.rows.size(), 1u);
  EXPECT_EQ(plan.rows[0].source, base::StepRow::Source::kLastSample);
  EXPECT_EQ(plan.rows[0].outputs, base::StepRow::Outputs::kAll);
  EXPECT_THAT(plan.rows[0].new_block_ids, ElementsAre(12));
}

TEST(PlanCodecTest, ARowOfAPipelineBringsItsToken) {
  v1::StepPlan message = FullPlan();
  message.mutable_rows(0)->set_source(v1::StepRow::SOURCE_TOKEN);
  message.mutable_rows(0)->set_token_id(77);
  base::StepPlan plan;
  ASSERT_TRUE(DecodePlan(message, &plan).ok());
  EXPECT_EQ(plan.rows[0].source, base::StepRow::Source::kToken);
  EXPECT_EQ(plan.rows[0].token_id, 77u);
}

TEST(PlanCodecTest, AReusedPlanKeepsNothingOfTheOneBefore) {
  base::StepPlan plan;
  ASSERT_TRUE(DecodePlan(FullPlan(), &plan).ok());
  ASSERT_TRUE(DecodePlan(v1::StepPlan(), &plan).ok());
  EXPECT_TRUE(plan.starts.empty() && plan.rows.empty() && plan.ended_slots.empty() &&
              plan.block_moves.empty());
}

TEST(PlanCodecTest, RefusesWhatNoStructCanHold) {
  const auto refused = [](auto edit, const char* why) {
    v1::StepPlan message = FullPlan();
    edit(&message);
    base::StepPlan plan;
    const absl::Status status = DecodePlan(message, &plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refused([](v1::StepPlan* p) { p->mutable_rows(0)->clear_source(); }, "row source 0");
  refused([](v1::StepPlan* p) { p->mutable_rows(0)->clear_outputs(); }, "row outputs 0");
  refused([](v1::StepPlan* p) { p->mutable_block_moves(0)->clear_kind(); }, "kind 0");
  refused([](v1::StepPlan* p) { p->mutable_starts(0)->mutable_sampling()->add_bias_ids(1); },
          "2 bias ids but 1");
}

TEST(PlanCodecTest, RefusesSamplingThatIsNoNumberOrOutOfRange) {
  using Setter = void (v1::Sampling::*)(float);
  const struct {
    const char* name;
    Setter set;
    float too_low;  // 0: any number will do
  } fields[] = {{"temperature", &v1::Sampling::set_temperature, -1},
                {"top_p", &v1::Sampling::set_top_p, -1},
                {"min_p", &v1::Sampling::set_min_p, -1},
                {"repetition_penalty", &v1::Sampling::set_repetition_penalty, -1},
                {"presence_penalty", &v1::Sampling::set_presence_penalty, 0},
                {"frequency_penalty", &v1::Sampling::set_frequency_penalty, 0}};
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  base::StepPlan plan;
  for (const auto& field : fields) {
    for (const float value : {kNaN, kInfinity, -kInfinity, field.too_low}) {
      if (value == 0) continue;
      v1::StepPlan message = FullPlan();
      (message.mutable_starts(0)->mutable_sampling()->*field.set)(value);
      const absl::Status status = DecodePlan(message, &plan);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field.name << " " << value;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrFormat("%s %g", field.name, value)));
    }
  }
  for (const float value : {kNaN, -kInfinity}) {
    v1::StepPlan message = FullPlan();
    message.mutable_starts(0)->mutable_sampling()->set_bias_values(0, value);
    EXPECT_THAT(std::string(DecodePlan(message, &plan).message()), HasSubstr("bias of token 8 is"));
  }
}

TEST(PlanCodecTest, EveryFieldOfAnOutputArrives) {
  base::RowOutput output;
  output.slot = 4;
  output.token_ids = {17};
  output.logprobs = {{{17, -0.5f}, {{17, -0.5f}, {18, -1.0f}}}};
  output.prompt_logprobs = {{{3, -2.0f}, {}}};
  output.error = "why";
  v1::RowOutput message;
  EncodeOutput(output, &message);
  EXPECT_EQ(message.slot(), 4u);
  EXPECT_THAT(message.token_ids(), ElementsAre(17));
  EXPECT_EQ(message.logprobs(0).chosen().logprob(), -0.5f);
  EXPECT_EQ(message.logprobs(0).top(1).token_id(), 18u);
  EXPECT_EQ(message.prompt_logprobs(0).chosen().token_id(), 3u);
  EXPECT_EQ(message.error(), "why");
}

}  // namespace
}  // namespace shoal::worker
