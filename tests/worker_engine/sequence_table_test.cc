#include "worker/engine/sequence_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using base::StepPlan;
using base::StepRow;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr EngineLimits kLimits = {.num_blocks = 8,
                                  .max_batch_tokens = 32,
                                  .max_batch_seqs = 4,
                                  .max_seq_len = 64,
                                  .vocab_size = 100};

base::SequenceStart Start(uint32_t slot, std::vector<uint32_t> tokens, uint32_t cached = 0,
                          std::vector<uint32_t> blocks = {0, 1}) {
  base::SequenceStart start;
  start.slot = slot;
  start.num_prompt_tokens = static_cast<uint32_t>(tokens.size());
  start.token_ids = std::move(tokens);
  start.num_cached_tokens = cached;
  start.block_ids = std::move(blocks);
  return start;
}

StepRow Row(uint32_t slot, uint32_t num_tokens, StepRow::Outputs outputs,
            StepRow::Source source = StepRow::Source::kLog) {
  StepRow row;
  row.slot = slot;
  row.num_tokens = num_tokens;
  row.outputs = outputs;
  row.source = source;
  return row;
}

TEST(SequenceTableTest, PromptInTwoChunksThenDecode) {
  SequenceTable table(kLimits);
  StepPlan first;
  first.starts = {Start(2, {10, 11, 12})};
  first.rows = {Row(2, 2, StepRow::Outputs::kNone)};
  ASSERT_TRUE(table.Validate(first).ok());
  StepBatch batch = table.Apply(first);
  EXPECT_THAT(batch.tokens, ElementsAre(10, 11));
  EXPECT_TRUE(batch.output_rows.empty());

  StepPlan second;
  second.rows = {Row(2, 1, StepRow::Outputs::kLast)};
  ASSERT_TRUE(table.Validate(second).ok());
  batch = table.Apply(second);
  EXPECT_THAT(batch.tokens, ElementsAre(12));
  EXPECT_EQ(batch.layout.positions[0], 2);
  EXPECT_THAT(batch.output_rows, ElementsAre(0));
  EXPECT_TRUE(table.output_uses()[0].sample);
  table.AppendSample(2, 42);

  StepPlan third;
  third.rows = {Row(2, 1, StepRow::Outputs::kLast, StepRow::Source::kLastSample)};
  ASSERT_TRUE(table.Validate(third).ok());
  batch = table.Apply(third);
  EXPECT_THAT(batch.tokens, ElementsAre(42));
  EXPECT_EQ(batch.layout.positions[0], 3);
}

TEST(SequenceTableTest, ARowOfAPipelineBringsTheTokenItGoesOnWith) {
  SequenceTable table(kLimits);
  StepPlan first;
  first.starts = {Start(0, {5, 6, 7})};
  first.rows = {Row(0, 3, StepRow::Outputs::kLast)};
  table.Apply(first);
  StepPlan second;
  second.rows = {Row(0, 1, StepRow::Outputs::kLast, StepRow::Source::kToken)};
  second.rows[0].token_id = 42;
  ASSERT_TRUE(table.Validate(second).ok());
  const StepBatch batch = table.Apply(second);
  EXPECT_THAT(batch.tokens, ElementsAre(42));
  EXPECT_EQ(batch.layout.positions[0], 3);

  StepPlan bad = second;
  bad.rows[0].token_id = kLimits.vocab_size;
  EXPECT_EQ(table.Validate(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = second;
  bad.rows[0].num_tokens = 2;
  EXPECT_EQ(table.Validate(bad).code(), absl::StatusCode::kInvalidArgument);
  // While the prompt is not done there is nothing to go on with.
  SequenceTable early(kLimits);
  first.rows = {Row(0, 2, StepRow::Outputs::kNone)};
  early.Apply(first);
  EXPECT_EQ(early.Validate(second).code(), absl::StatusCode::kInvalidArgument);
}

TEST(SequenceTableTest, OutputsAllScoresThePromptAndSamplesItsEnd) {
  SequenceTable table(kLimits);
  StepPlan plan;
  plan.starts = {Start(0, {10, 11, 12})};
  plan.rows = {Row(0, 3, StepRow::Outputs::kAll)};
  ASSERT_TRUE(table.Validate(plan).ok());
  const StepBatch batch = table.Apply(plan);
  EXPECT_THAT(batch.output_rows, ElementsAre(0, 1, 2));
  const auto uses = table.output_uses();
  EXPECT_TRUE(uses[0].score && uses[1].score && !uses[2].score);
  EXPECT_TRUE(!uses[0].sample && !uses[1].sample && uses[2].sample);
}

TEST(SequenceTableTest, RowsOfSeveralSequencesLieOneAfterTheOther) {
  SequenceTable table(kLimits);
  StepPlan plan;
  plan.starts = {Start(0, {1, 2}), Start(1, std::vector<uint32_t>(20, 3), 16, {4, 5})};
  plan.rows = {Row(1, 4, StepRow::Outputs::kLast), Row(0, 2, StepRow::Outputs::kLast)};
  ASSERT_TRUE(table.Validate(plan).ok());
  const StepBatch batch = table.Apply(plan);
  EXPECT_THAT(batch.tokens, ElementsAre(3, 3, 3, 3, 1, 2));
  EXPECT_EQ(batch.layout.num_seqs, 2);
  EXPECT_EQ(batch.layout.seq_row_begin[1], 4);
  EXPECT_EQ(batch.layout.positions[0], 16);
  EXPECT_EQ(batch.layout.block_tables[0][1], 5);
  EXPECT_THAT(batch.output_rows, ElementsAre(3, 5));
}

TEST(SequenceTableTest, ASlotEndsAndStartsInOnePlan) {
  SequenceTable table(kLimits);
  StepPlan plan;
  plan.starts = {Start(0, {1})};
  plan.rows = {Row(0, 1, StepRow::Outputs::kLast)};
  table.Apply(plan);
  StepPlan again;
  again.ended_slots = {0};
  again.starts = {Start(0, {7, 8})};
  again.rows = {Row(0, 2, StepRow::Outputs::kLast)};
  ASSERT_TRUE(table.Validate(again).ok());
  EXPECT_THAT(table.Apply(again).tokens, ElementsAre(7, 8));

  SequenceTable fresh(kLimits);
  StepPlan only;
  only.starts = again.starts;
  only.rows = again.rows;
  fresh.Apply(only);
  EXPECT_EQ(fresh.state_hash(), table.state_hash());
}

TEST(SequenceTableTest, RefusesWhatItCannotRunAndSaysWhy) {
  SequenceTable table(kLimits);
  StepPlan live;
  live.starts = {Start(0, {1, 2, 3})};
  live.rows = {Row(0, 3, StepRow::Outputs::kLast)};
  ASSERT_TRUE(table.Validate(live).ok());
  table.Apply(live);
  const uint64_t hash = table.state_hash();

  const auto refused = [&](auto edit, absl::string_view why) {
    StepPlan plan;
    edit(&plan);
    const absl::Status status = table.Validate(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(why)));
  };
  refused([](StepPlan* p) { p->starts = {Start(1, {100})}; }, "token 100");
  refused([](StepPlan* p) { p->starts = {Start(1, {1}, 0, {8})}; }, "block 8");
  refused([](StepPlan* p) { p->starts = {Start(0, {1})}; }, "slot 0 starts twice");
  refused([](StepPlan* p) { p->starts = {Start(1, {1, 2}, 2)}; }, "2 cached");
  refused([](StepPlan* p) { p->starts = {Start(1, std::vector<uint32_t>(65, 1))}; }, "65 tokens");
  refused([](StepPlan* p) { p->starts = {Start(4000, {1})}; }, "slot 4000");
  refused([](StepPlan* p) { p->ended_slots = {3}; }, "slot 3 ends");
  refused([](StepPlan* p) { p->rows = {Row(3, 1, StepRow::Outputs::kLast)}; }, "row of slot 3");
  refused([](StepPlan* p) { p->rows = {Row(0, 1, StepRow::Outputs::kLast)}; }, "position 3");
  refused(
      [](StepPlan* p) {
        p->starts = {Start(1, std::vector<uint32_t>(33, 1), 0, {2, 3, 4}), Start(2, {1})};
        p->rows = {Row(1, 33, StepRow::Outputs::kLast)};
      },
      "33 tokens");
  refused(
      [](StepPlan* p) {
        p->starts = {Start(1, std::vector<uint32_t>(17, 1), 0, {2})};
        p->rows = {Row(1, 17, StepRow::Outputs::kLast)};
      },
      "row of slot 1 with 17 tokens");
  refused([](StepPlan* p) { p->block_moves = {{base::BlockMove::Kind::kCopy, 1, 9}}; }, "block 9");
  EXPECT_EQ(table.state_hash(), hash);
}

}  // namespace
}  // namespace shoal::worker
