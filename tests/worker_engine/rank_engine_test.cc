#include "worker/engine/rank_engine.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/worker_engine/tiny_model.h"

namespace shoal::worker {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::unique_ptr<RankEngine> NewEngine() {
  static const auto& file = *MakeTinyFile({}).release();
  auto backend = kernels::NewCpuBackend({.threads = 1, .cpus = {}, .isa = kernels::BestIsa()});
  CHECK(backend.ok()) << backend.status();
  auto model = RankModel::Load(file,
                               {.kv_bytes = 4 << 20,
                                .max_batch_tokens = 32,
                                .max_batch_seqs = 4,
                                .max_seq_len = 64,
                                .available_bytes = 0},
                               *std::move(backend), nullptr);
  CHECK(model.ok()) << model.status();
  auto engine = std::make_unique<RankEngine>(*std::move(model));
  engine->StartEpoch(nullptr);
  return engine;
}

base::SequenceStart GreedyStart(uint32_t slot) {
  base::SequenceStart start;
  start.slot = slot;
  start.token_ids = {7, 8, 9 + slot};
  start.num_prompt_tokens = 3;
  start.block_ids = {slot};
  start.sampling.temperature = 0;
  return start;
}

// The next token of every slot; the first plan of a slot has its prompt.
base::StepPlan PlanFor(std::vector<base::SequenceStart> starts,
                       const std::vector<uint32_t>& slots) {
  base::StepPlan plan;
  for (const uint32_t slot : slots) {
    base::StepRow row;
    row.slot = slot;
    row.num_tokens = starts.empty() ? 1 : 3;
    row.source = starts.empty() ? base::StepRow::Source::kLastSample : base::StepRow::Source::kLog;
    row.outputs = base::StepRow::Outputs::kLast;
    plan.rows.push_back(std::move(row));
  }
  plan.starts = std::move(starts);
  return plan;
}

StepOutcome Execute(RankEngine* engine, const base::StepPlan& plan) {
  StepOutcome outcome;
  const absl::Status status = engine->Step(plan, &outcome);
  EXPECT_TRUE(status.ok()) << status;
  return outcome;
}

// A router that plans ahead learns of a failed row when the rank has the next one already.
TEST(RankEngineTest, TheNextPlanMayContinueARowThatFailed) {
  const auto alone = NewEngine();
  std::vector<uint32_t> wanted;
  wanted.push_back(
      Execute(alone.get(), PlanFor({GreedyStart(1)}, {1})).outputs[0].token_ids.front());
  wanted.push_back(Execute(alone.get(), PlanFor({}, {1})).outputs[0].token_ids.front());

  const auto engine = NewEngine();
  base::SequenceStart ill = GreedyStart(0);
  ill.sampling.logit_bias = {{5, NAN}};
  StepOutcome outcome = Execute(engine.get(), PlanFor({ill, GreedyStart(1)}, {0, 1}));
  ASSERT_THAT(outcome.outputs, SizeIs(2));
  EXPECT_THAT(outcome.outputs[0].error, HasSubstr("non-finite"));
  EXPECT_THAT(outcome.outputs[0].token_ids, IsEmpty());
  EXPECT_EQ(outcome.outputs[1].token_ids.front(), wanted[0]);
  outcome = Execute(engine.get(), PlanFor({}, {0, 1}));
  EXPECT_THAT(outcome.outputs[0].error, HasSubstr("non-finite"));
  EXPECT_EQ(outcome.outputs[1].token_ids.front(), wanted[1]);
}

}  // namespace
}  // namespace shoal::worker
