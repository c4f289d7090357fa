#include "worker/engine/rank_engine.h"

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/quant/quantize.h"
#include "parallel/local_transport.h"
#include "tests/worker_engine/tiny_model.h"

namespace shoal::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::unique_ptr<RankEngine> NewEngine(const model::GgufFile& file) {
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
  engine->StartEpoch({});
  return engine;
}

std::unique_ptr<RankEngine> NewEngine() {
  static const auto& file = *MakeTinyFile({}).release();
  return NewEngine(file);
}

void SetValue(model::GgufDocument* document, const std::string& tensor, size_t index, float value) {
  for (model::GgufDocument::Tensor& t : document->tensors) {
    if (t.name == tensor) t.data.replace(index * 4, 4, model::GgufBytes(value));
  }
}

// A model whose feed-forward overflows for token 9 alone: only its embedding has a first column,
// which nothing adds to before the first ffn_up reads it. `gate` decides what becomes of infinity.
std::unique_ptr<model::GgufFile> MakeFileThatOverflowsAtToken9(float gate) {
  const TinyModel tiny;
  model::GgufDocument document = MakeTinyDocument(tiny);
  for (int token = 0; token < tiny.vocab; ++token) {
    SetValue(&document, "token_embd.weight", token * tiny.hidden, token == 9 ? 10.0f : 0.0f);
  }
  for (int column = 0; column < tiny.heads * tiny.head_dim; ++column) {
    SetValue(&document, "blk.0.attn_output.weight", column, 0.0f);
  }
  SetValue(&document, "blk.0.ffn_norm.weight", 0, 1.0f);
  for (int column = 0; column < tiny.hidden; ++column) {
    SetValue(&document, "blk.0.ffn_gate.weight", column, column == 0 ? gate : 0.0f);
    SetValue(&document, "blk.0.ffn_up.weight", column, column == 0 ? 3e38f : 0.0f);
  }
  // As a real model has it: the product that reads the overflow is a quantised one.
  for (model::GgufDocument::Tensor& tensor : document.tensors) {
    if (tensor.name != "blk.0.ffn_down.weight") continue;
    const auto* values = reinterpret_cast<const float*>(tensor.data.data());
    const int64_t size = static_cast<int64_t>(tensor.data.size() / 4);
    std::string bytes(kernels::RowBytes(kernels::DType::kQ8_0, size), '\0');
    kernels::QuantizeRow(kernels::DType::kQ8_0, values, bytes.data(), size);
    tensor.data = bytes;
    tensor.type = static_cast<uint32_t>(kernels::DType::kQ8_0);
  }
  const std::string bytes = document.Serialize();
  auto file = model::GgufFile::Parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                                     "overflows.gguf");
  CHECK(file.ok()) << file.status();
  return *std::move(file);
}

// Tables have more rows than there are tokens. What the pads hold must not be drawn: the router
// could not take such an id back when a client resumes its stream.
std::unique_ptr<model::GgufFile> MakeFileWithTokens(int count) {
  model::GgufDocument document = MakeTinyDocument({});
  for (int column = 0; column < TinyModel{}.hidden; ++column) {
    SetValue(&document, "output_norm.weight", column, 1.0f);
  }
  for (model::GgufDocument::Tensor& tensor : document.tensors) {
    if (tensor.name != "output.weight") continue;
    auto* values = reinterpret_cast<float*>(tensor.data.data());
    for (int i = 300 * TinyModel{}.hidden; i < 520 * TinyModel{}.hidden; ++i) values[i] *= 100;
  }
  document.AddStringArray("tokenizer.ggml.tokens", std::vector<std::string>(count, "t"));
  const std::string bytes = document.Serialize();
  auto file = model::GgufFile::Parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                                     "padded.gguf");
  CHECK(file.ok()) << file.status();
  return *std::move(file);
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

// Infinity times zero is NaN, which must not come out of a quantised product as a number.
TEST(RankEngineTest, ASequenceThatOverflowsFailsAndItsNeighboursKeepTheirTokens) {
  for (const float gate : {0.0f, 1.0f, -1e30f}) {
    const auto file = MakeFileThatOverflowsAtToken9(gate);
    const auto alone = NewEngine(*file);
    const uint32_t wanted =
        Execute(alone.get(), PlanFor({GreedyStart(1)}, {1})).outputs[0].token_ids.front();
    const auto engine = NewEngine(*file);
    const StepOutcome outcome =
        Execute(engine.get(), PlanFor({GreedyStart(0), GreedyStart(1)}, {0, 1}));
    ASSERT_THAT(outcome.outputs, SizeIs(2));
    EXPECT_THAT(outcome.outputs[0].error, HasSubstr("non-finite")) << gate;
    EXPECT_EQ(outcome.outputs[1].error, "") << gate;
    EXPECT_THAT(outcome.outputs[1].token_ids, ElementsAre(wanted)) << gate;
  }
}

TEST(RankEngineTest, DrawsOnlyTokensThatTheTokenizerHas) {
  for (const float temperature : {0.0f, 1.0f}) {
    base::SequenceStart start = GreedyStart(0);
    start.sampling.temperature = temperature;
    start.sampling.top_logprobs = 20;
    const auto file = MakeFileWithTokens(300);
    const auto engine = NewEngine(*file);
    StepOutcome outcome = Execute(engine.get(), PlanFor({start}, {0}));
    for (int step = 0; step < 8; ++step) {
      ASSERT_EQ(outcome.outputs[0].error, "");
      EXPECT_LT(outcome.outputs[0].token_ids.front(), 300u);
      outcome = Execute(engine.get(), PlanFor({}, {0}));
    }
  }
  // With a token for each row the same logits win from among the last.
  const auto file = MakeFileWithTokens(520);
  const auto engine = NewEngine(*file);
  const StepOutcome outcome = Execute(engine.get(), PlanFor({GreedyStart(0)}, {0}));
  EXPECT_GE(outcome.outputs[0].token_ids.front(), 300u);
}

// --- Stages of a pipeline ---

std::unique_ptr<RankEngine> NewStage(const model::GgufFile& file, RankModel::Options options) {
  options.kv_bytes = 4 << 20;
  options.max_batch_tokens = 32;
  options.max_batch_seqs = 4;
  options.max_seq_len = 64;
  options.available_bytes = 0;
  auto backend = kernels::NewCpuBackend({.threads = 1, .cpus = {}, .isa = kernels::BestIsa()});
  CHECK(backend.ok()) << backend.status();
  auto model = RankModel::Load(file, options, *std::move(backend), nullptr);
  CHECK(model.ok()) << model.status();
  return std::make_unique<RankEngine>(*std::move(model));
}

std::vector<std::unique_ptr<parallel::Transport>> TwoTransports() {
  auto transports = parallel::NewLocalTransports(
      {.size = 2, .op_timeout = absl::Seconds(60), .allow_spin = false});
  CHECK(transports.ok()) << transports.status();
  return *std::move(transports);
}

TEST(RankEngineTest, StagesGoOnWithTheTokensThatThePlansName) {
  const auto alone = NewEngine();
  const auto file = MakeTinyFile({});
  const auto first = NewStage(*file, {.pp = 2, .stage = 0});
  const auto last = NewStage(*file, {.pp = 2, .stage = 1});
  auto transports = TwoTransports();
  first->StartEpoch({.stages = std::move(transports[0])});
  last->StartEpoch({.stages = std::move(transports[1])});
  std::vector<uint32_t> tokens(2);  // of slots 0 and 1
  for (int step = 0; step < 5; ++step) {
    const auto starts = step == 0 ? std::vector<base::SequenceStart>{GreedyStart(0), GreedyStart(1)}
                                  : std::vector<base::SequenceStart>{};
    const StepOutcome wanted = Execute(alone.get(), PlanFor(starts, {0, 1}));
    base::StepPlan plan = PlanFor(starts, {0, 1});
    for (base::StepRow& row : plan.rows) {
      if (step == 0) continue;
      row.source = base::StepRow::Source::kToken;
      row.token_id = tokens[row.slot];
    }
    const StepOutcome sent = Execute(first.get(), plan);
    const StepOutcome sampled = Execute(last.get(), plan);
    EXPECT_EQ(sent.state_hash, wanted.state_hash);
    EXPECT_EQ(sampled.state_hash, wanted.state_hash);
    EXPECT_EQ(sampled.token_hash, wanted.token_hash) << step;
    for (uint32_t slot : {0, 1}) {
      EXPECT_THAT(sent.outputs[slot].token_ids, IsEmpty());
      ASSERT_EQ(sampled.outputs[slot].token_ids, wanted.outputs[slot].token_ids) << step;
      tokens[slot] = sampled.outputs[slot].token_ids.front();
    }
  }
  // What a stage sampled itself is not what the others know.
  StepOutcome outcome;
  EXPECT_EQ(last->Step(PlanFor({}, {0}), &outcome).code(), absl::StatusCode::kInvalidArgument);
}

TEST(RankEngineTest, SaysForWhichRankOfTheGroupItWaitsAndTellsAllOfAFailure) {
  const auto file = MakeTinyFile({});
  const auto rank = NewStage(*file, {.tp = 2, .shard = 1, .pp = 2, .stage = 1});  // rank 3
  auto shards = TwoTransports();
  auto stages = TwoTransports();
  rank->StartEpoch({.shards = std::move(shards[1]), .stages = std::move(stages[1])});
  absl::Status status;
  std::thread thread([&] {
    StepOutcome outcome;
    status = rank->Step(PlanFor({GreedyStart(0)}, {0}), &outcome);
  });
  while (rank->position().waiting_for < 0) std::this_thread::yield();
  EXPECT_EQ(rank->position().waiting_for, 1) << "the same shard of stage 0";
  EXPECT_EQ(rank->position().op, "Receive");
  stages[0]->Abort(absl::AbortedError("stage 0 gave up"));
  thread.join();
  EXPECT_THAT(status.message(), HasSubstr("stage 0 gave up"));
  // The other shard would wait for this one in its next gather.
  EXPECT_THAT(shards[0]->Barrier().message(), HasSubstr("stage 0 gave up"));
}

}  // namespace
}  // namespace shoal::worker
