// Tokens and logprobs that were written down once. Every build that runs this test (release and
// debug, g++ and clang, with sanitizers and without) and every instruction set must give them: what
// those builds cannot compare with each other, they compare with these numbers.
//
// They belong to numerics id cpu-1/graph1/kv-f16. Whoever raises it takes the numbers that a
// failure prints.

#include <glog/logging.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/state_hash.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/isa.h"
#include "tests/worker_engine/tiny_model.h"
#include "worker/engine/rank_engine.h"

namespace shoal::worker {
namespace {

using kernels::DType;

constexpr int kNumTokens = 24;
constexpr uint32_t kNumPrompt = 37;  // three pages, the last one short

struct Golden {
  TinyModel model;
  std::vector<uint32_t> greedy;
  std::vector<uint32_t> seeded;
  uint64_t logprob_hash;  // of both
};

struct Answers {
  std::vector<uint32_t> greedy;
  std::vector<uint32_t> seeded;
  uint64_t logprob_hash = 0;
};

std::vector<Golden> Goldens() {
  return {
      {.model = {.architecture = "llama"},
       .greedy = {210, 4,   478, 369, 65,  79, 2,   94,  222, 443, 517, 32,
                  61,  225, 392, 416, 475, 79, 507, 214, 30,  84,  158, 2},
       .seeded = {342, 45,  97, 79,  254, 222, 451, 86,  144, 288, 268, 486,
                  345, 240, 67, 465, 261, 102, 486, 509, 395, 163, 2,   292},
       .logprob_hash = 1900125474594298982u},
      // As SmolLM2: uneven heads, a tied head.
      {.model = {.hidden = 288,
                 .heads = 9,
                 .kv_heads = 3,
                 .ffn = 96 * 5,
                 .matrix_type = DType::kQ4_1,
                 .tied_head = true},
       .greedy = {324, 212, 315, 213, 373, 12, 434, 374, 374, 442, 13, 204,
                  12,  12,  12,  12,  12,  12, 12,  324, 141, 12,  79, 434},
       .seeded = {389, 459, 296, 127, 266, 224, 373, 163, 178, 519, 376, 341,
                  336, 237, 283, 89,  281, 284, 277, 267, 164, 519, 419, 300},
       .logprob_hash = 4539872939744558266u},
      {.model = {.architecture = "qwen2", .matrix_type = DType::kQ8_0, .qkv_bias = true, .seed = 3},
       .greedy = {361, 340, 288, 461, 150, 148, 150, 150, 150, 150, 167, 465,
                  375, 395, 197, 167, 101, 192, 225, 113, 395, 461, 150, 32},
       .seeded = {395, 289, 431, 394, 54,  483, 361, 46,  457, 13,  199, 486,
                  202, 88,  101, 353, 288, 288, 389, 449, 237, 412, 381, 340},
       .logprob_hash = 14183680934713224413u},
      // As Q4_K_M files: Q4_K with some Q6_K.
      {.model = {.architecture = "qwen3",
                 .kv_heads = 4,
                 .head_dim = 64,
                 .ffn = 512,
                 .matrix_type = DType::kQ4_K,
                 .value_type = DType::kQ6_K,
                 .mixed_types = true,
                 .rope_base = 1e6},
       .greedy = {61,  315, 417, 471, 362, 311, 221, 218, 5,   450, 61,  495,
                  218, 5,   425, 101, 5,   345, 357, 410, 484, 449, 394, 260},
       .seeded = {4,   180, 396, 189, 22, 342, 192, 30,  90,  58,  365, 73,
                  417, 240, 283, 302, 72, 104, 179, 124, 431, 514, 290, 343},
       .logprob_hash = 4577900723375327942u},
  };
}

std::string NameOf(const TinyModel& tiny) {
  return absl::StrCat(tiny.architecture, " ", kernels::TraitsOf(tiny.matrix_type).name);
}

base::SamplingParams Greedy() {
  base::SamplingParams params;
  params.temperature = 0;
  return params;
}

base::SamplingParams Seeded() {
  base::SamplingParams params;
  params.temperature = 0.9f;
  params.top_p = 0.95f;
  params.top_k = 40;
  params.repetition_penalty = 1.2f;
  params.presence_penalty = 0.1f;
  params.frequency_penalty = 0.3f;
  params.seed = 1234;
  return params;
}

base::SequenceStart MakeStart(uint32_t slot, base::SamplingParams sampling) {
  base::SequenceStart start;
  start.slot = slot;
  for (uint32_t i = 0; i < kNumPrompt; ++i) start.token_ids.push_back((i * 37 + slot * 11) % 500);
  start.num_prompt_tokens = kNumPrompt;
  for (uint32_t block = 0; block < 4; ++block) start.block_ids.push_back(slot + 2 * block);
  start.sampling = std::move(sampling);
  start.sampling.top_logprobs = 3;
  return start;
}

uint64_t AddLogprobs(uint64_t hash, const std::vector<base::PositionLogprobs>& positions) {
  for (const base::PositionLogprobs& position : positions) {
    hash = base::CombineHash(hash, std::bit_cast<uint32_t>(position.chosen.logprob));
    for (const base::TokenLogprob& top : position.top) {
      hash = base::CombineHash(hash, top.token_id);
      hash = base::CombineHash(hash, std::bit_cast<uint32_t>(top.logprob));
    }
  }
  return hash;
}

// A greedy and a seeded sequence in one batch: the prompt in one step, then token by token.
Answers Generate(const model::GgufFile& file, kernels::Isa isa, int threads) {
  auto backend = kernels::NewCpuBackend({.threads = threads, .cpus = {}, .isa = isa});
  CHECK(backend.ok()) << backend.status();
  auto model = RankModel::Load(file,
                               {.kv_bytes = 4 << 20,
                                .max_batch_tokens = 128,
                                .max_batch_seqs = 8,
                                .max_seq_len = 128,
                                .available_bytes = 0},
                               *std::move(backend), nullptr);
  CHECK(model.ok()) << model.status();
  RankEngine engine(*std::move(model));
  engine.StartEpoch({});
  base::StepPlan plan;
  plan.starts = {MakeStart(0, Greedy()), MakeStart(1, Seeded())};
  Answers answers;
  for (int i = 0; i < kNumTokens; ++i) {
    plan.step = i + 1;
    plan.rows.clear();
    for (uint32_t slot : {0u, 1u}) {
      base::StepRow row;
      row.slot = slot;
      row.num_tokens = i == 0 ? kNumPrompt : 1;
      row.source = i == 0 ? base::StepRow::Source::kLog : base::StepRow::Source::kLastSample;
      row.outputs = base::StepRow::Outputs::kLast;
      plan.rows.push_back(row);
    }
    StepOutcome outcome;
    const absl::Status status = engine.Step(plan, &outcome);
    CHECK(status.ok()) << status;
    plan.starts.clear();
    CHECK_EQ(outcome.outputs.size(), 2u);
    for (const base::RowOutput& output : outcome.outputs) {
      CHECK_EQ(output.token_ids.size(), 1u) << output.error;
      (output.slot == 0 ? answers.greedy : answers.seeded).push_back(output.token_ids[0]);
      answers.logprob_hash = AddLogprobs(answers.logprob_hash, output.logprobs);
    }
  }
  return answers;
}

TEST(GoldenBitsTest, EveryBuildAndInstructionSetGivesTheTokensAndLogprobsWrittenDown) {
  for (const Golden& golden : Goldens()) {
    const auto file = MakeTinyFile(golden.model);
    for (const kernels::Isa isa : kernels::SupportedIsas()) {
      SCOPED_TRACE(absl::StrCat(NameOf(golden.model), ", ", kernels::IsaName(isa)));
      const Answers answers = Generate(*file, isa, isa == kernels::BestIsa() ? 2 : 1);
      EXPECT_EQ(answers.greedy, golden.greedy);
      EXPECT_EQ(answers.seeded, golden.seeded);
      EXPECT_EQ(answers.logprob_hash, golden.logprob_hash);
    }
  }
}

}  // namespace
}  // namespace shoal::worker
