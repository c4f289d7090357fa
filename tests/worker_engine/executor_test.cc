#include "worker/engine/executor.h"

#include <glog/logging.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/isa.h"
#include "kernels/reference/reference_backend.h"
#include "tests/worker_engine/engine_harness.h"
#include "tests/worker_engine/tiny_model.h"

namespace shoal::worker {
namespace {

using kernels::DType;
using kernels::KvType;

BackendFactory Cpu(int threads = 1, std::optional<kernels::Isa> isa = std::nullopt) {
  return [=] {
    auto backend = kernels::NewCpuBackend({.threads = threads, .cpus = {}, .isa = isa});
    CHECK(backend.ok()) << backend.status();
    return *std::move(backend);
  };
}

BackendFactory Reference() {
  return [] { return kernels::NewReferenceBackend(); };
}

std::vector<int32_t> RandomTokens(int count, int vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % vocab);
  }
  return tokens;
}

RankModel::Options SmallOptions(int tp = 1, KvType kv_type = KvType::kF16) {
  return {.tp = tp,
          .kv_type = kv_type,
          .max_batch_tokens = 128,
          .max_batch_seqs = 8,
          .max_seq_len = 1024,
          .max_output_rows = 128};
}

// Bits, so that NaN and the sign of zero count.
void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b,
                    const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  ASSERT_FALSE(a.empty());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(float)), 0)
        << what << ": logit " << i << " is " << a[i] << " and " << b[i];
  }
}

// The largest difference, relative to the spread of the logits.
double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK_EQ(a.size(), b.size());
  double worst = 0;
  double square = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    worst = std::isfinite(difference) ? std::max(worst, difference) : HUGE_VAL;
    square += static_cast<double>(a[i]) * a[i];
  }
  return worst / std::sqrt(square / static_cast<double>(a.size()));
}

std::vector<TinyModel> Variants() {
  std::vector<TinyModel> variants;
  variants.push_back({.architecture = "llama"});
  variants.push_back({.architecture = "llama", .tied_head = true, .rope_factors = true});
  variants.push_back({.architecture = "llama",
                      .hidden = 288,
                      .heads = 9,
                      .kv_heads = 3,
                      .head_dim = 32,
                      .ffn = 96 * 5,
                      .matrix_type = DType::kQ4_1,
                      .tied_head = true});
  variants.push_back(
      {.architecture = "qwen2", .matrix_type = DType::kQ8_0, .qkv_bias = true, .seed = 3});
  variants.push_back({.architecture = "qwen3",
                      .hidden = 256,
                      .heads = 8,
                      .kv_heads = 4,
                      .head_dim = 64,
                      .ffn = 512,
                      .matrix_type = DType::kQ4_K,
                      .value_type = DType::kQ6_K,
                      .mixed_types = true,
                      .rope_base = 1e6});
  variants.push_back({.architecture = "llama",
                      .ffn = 512,
                      .matrix_type = DType::kQ5_K,
                      .value_type = DType::kF16,
                      .mixed_types = true});
  return variants;
}

std::string NameOf(const TinyModel& tiny) {
  return absl::StrCat(tiny.architecture, " ", kernels::TraitsOf(tiny.matrix_type).name, " heads ",
                      tiny.heads, "/", tiny.kv_heads, tiny.tied_head ? " tied" : "");
}

// A float that lies on the border between two steps of a quantised activation may go either way in
// double and in float; one such flip moves logits by some 7 % of their spread. Arithmetic is held
// tight by the float models.
double Tolerance(const TinyModel& tiny) {
  return kernels::IsQuantized(tiny.matrix_type) ? 0.2 : 2e-5;
}

TEST(ExecutorTest, CpuAgreesWithTheReference) {
  for (const TinyModel& tiny : Variants()) {
    const auto file = MakeTinyFile(tiny);
    const std::vector<int32_t> tokens = RandomTokens(40, tiny.vocab, 7);
    const auto expected = EngineHarness(*file, SmallOptions(1, KvType::kF32), Reference())
                              .FeedInChunks(0, tokens, 40);
    const auto actual =
        EngineHarness(*file, SmallOptions(1, KvType::kF32), Cpu()).FeedInChunks(0, tokens, 40);
    EXPECT_LT(RelativeError(expected, actual), Tolerance(tiny)) << NameOf(tiny);
  }
}

TEST(ExecutorTest, InstructionSetsAndThreadsGiveTheSameBits) {
  for (const TinyModel& tiny : Variants()) {
    const auto file = MakeTinyFile(tiny);
    const std::vector<int32_t> tokens = RandomTokens(35, tiny.vocab, 8);
    const auto expected = EngineHarness(*file, SmallOptions(), Cpu(1, kernels::Isa::kPortable))
                              .FeedInChunks(0, tokens, 35);
    for (const kernels::Isa isa : kernels::SupportedIsas()) {
      for (const int threads : {1, 3}) {
        ExpectSameBits(
            expected,
            EngineHarness(*file, SmallOptions(), Cpu(threads, isa)).FeedInChunks(0, tokens, 35),
            absl::StrCat(NameOf(tiny), " isa ", static_cast<int>(isa), " threads ", threads));
      }
    }
  }
}

TEST(ExecutorTest, ChunksOfAPromptDoNotChangeABit) {
  for (const TinyModel& tiny : Variants()) {
    const auto file = MakeTinyFile(tiny);
    const std::vector<int32_t> tokens = RandomTokens(70, tiny.vocab, 9);
    for (const KvType kv_type : {KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kF32}) {
      const auto whole =
          EngineHarness(*file, SmallOptions(1, kv_type), Cpu()).FeedInChunks(0, tokens, 70);
      for (const int chunk : {1, 7, 16}) {
        ExpectSameBits(
            whole,
            EngineHarness(*file, SmallOptions(1, kv_type), Cpu()).FeedInChunks(0, tokens, chunk),
            absl::StrCat(NameOf(tiny), " chunk ", chunk));
      }
    }
  }
}

TEST(ExecutorTest, TensorParallelSizesGiveTheSameBits) {
  for (const TinyModel& tiny : Variants()) {
    const auto file = MakeTinyFile(tiny);
    const std::vector<int32_t> tokens = RandomTokens(20, tiny.vocab, 10);
    const auto alone = EngineHarness(*file, SmallOptions(1), Cpu()).FeedInChunks(0, tokens, 13);
    for (const int tp : {2, 3, 4, 8}) {
      ExpectSameBits(alone,
                     EngineHarness(*file, SmallOptions(tp), Cpu()).FeedInChunks(0, tokens, 13),
                     absl::StrCat(NameOf(tiny), " tp ", tp));
    }
  }
}

TEST(ExecutorTest, PipelinesGiveTheSameBits) {
  for (TinyModel tiny : Variants()) {
    tiny.layers = 4;
    const auto file = MakeTinyFile(tiny);
    const std::vector<int32_t> tokens = RandomTokens(20, tiny.vocab, 10);
    const auto alone = EngineHarness(*file, SmallOptions(1), Cpu()).FeedInChunks(0, tokens, 13);
    const struct {
      int tp;
      int pp;
      std::vector<int64_t> stage_layers;
    } kCuts[] = {{1, 2, {}}, {1, 3, {}}, {1, 4, {}}, {2, 2, {}}, {3, 2, {}}, {1, 2, {1, 3}}};
    for (const auto& [tp, pp, stage_layers] : kCuts) {
      RankModel::Options options = SmallOptions(tp);
      options.pp = pp;
      options.stage_layers = stage_layers;
      ExpectSameBits(alone, EngineHarness(*file, options, Cpu()).FeedInChunks(0, tokens, 13),
                     absl::StrCat(NameOf(tiny), " tp ", tp, " pp ", pp));
    }
  }
}

TEST(ExecutorTest, ABatchGivesEachSequenceTheBitsItHasAlone) {
  for (const TinyModel& tiny : Variants()) {
    const auto file = MakeTinyFile(tiny);
    EngineHarness batch(*file, SmallOptions(), Cpu());
    std::vector<std::vector<int32_t>> prompts;
    std::vector<EngineHarness::Feed> feeds;
    for (int s = 0; s < 4; ++s) {
      prompts.push_back(RandomTokens(5 + 9 * s, tiny.vocab, 20 + s));
      feeds.push_back({s, prompts.back()});
    }
    std::vector<float> first = batch.Step(feeds);
    // Then one token each, beside a newcomer's prompt.
    std::vector<EngineHarness::Feed> next = {{4, RandomTokens(17, tiny.vocab, 30)}};
    for (int s = 0; s < 4; ++s) {
      next.push_back({s, {static_cast<int32_t>(s + 1)}});
    }
    const std::vector<float> second = batch.Step(next);
    size_t row = 0;
    for (int s = 0; s < 4; ++s) {
      std::vector<int32_t> tokens = prompts[s];
      tokens.push_back(s + 1);
      const auto alone = EngineHarness(*file, SmallOptions(), Cpu())
                             .FeedInChunks(0, tokens, static_cast<int>(prompts[s].size()));
      const auto begin = first.begin() + static_cast<int64_t>(row) * tiny.vocab;
      std::vector<float> together(begin,
                                  begin + static_cast<int64_t>(prompts[s].size()) * tiny.vocab);
      const auto decoded = second.begin() + static_cast<int64_t>(17 + s) * tiny.vocab;
      together.insert(together.end(), decoded, decoded + tiny.vocab);
      ExpectSameBits(alone, together, absl::StrCat(NameOf(tiny), " sequence ", s));
      row += prompts[s].size();
    }
  }
}

TEST(ExecutorTest, PagesAndSegmentsOfALongContextDoNotChangeABit) {
  const TinyModel tiny{.layers = 1};
  const auto file = MakeTinyFile(tiny);
  const std::vector<int32_t> tokens = RandomTokens(600, tiny.vocab, 11);
  ExpectSameBits(EngineHarness(*file, SmallOptions(), Cpu()).FeedInChunks(0, tokens, 128),
                 EngineHarness(*file, SmallOptions(2), Cpu(2)).FeedInChunks(0, tokens, 47), "600");
}

TEST(ExecutorTest, LogitsDependOnEveryEarlierToken) {
  const TinyModel tiny;
  const auto file = MakeTinyFile(tiny);
  const std::vector<int32_t> tokens = RandomTokens(20, tiny.vocab, 12);
  std::vector<int32_t> changed = tokens;
  changed[0] = (changed[0] + 1) % tiny.vocab;
  const auto a = EngineHarness(*file, SmallOptions(), Cpu()).FeedInChunks(0, tokens, 20);
  const auto b = EngineHarness(*file, SmallOptions(), Cpu()).FeedInChunks(0, changed, 20);
  const std::vector<float> last_a(a.end() - tiny.vocab, a.end());
  const std::vector<float> last_b(b.end() - tiny.vocab, b.end());
  EXPECT_GT(RelativeError(last_a, last_b), 1e-3);
}

// --- One shard, driven by hand
// --------------------------------------------------------------------

class OneRank {
 public:
  explicit OneRank(const TinyModel& tiny) : file_(MakeTinyFile(tiny)) {
    RankModel::Options options = SmallOptions();
    options.available_bytes = 0;
    auto model = RankModel::Load(*file_, options, Cpu()(), nullptr);
    CHECK(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  RankModel& model() { return *model_; }
  Executor& executor() { return model_->executor(); }

  // The tokens as the beginning of one sequence, whose KV it overwrites.
  void Run(const std::vector<int32_t>& tokens, const std::vector<int32_t>& output_rows) {
    positions_.resize(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      positions_[i] = static_cast<int32_t>(i);
    }
    rows_[1] = static_cast<int32_t>(tokens.size());
    const StepInput input{.tokens = tokens,
                          .layout = {.rows = static_cast<int64_t>(tokens.size()),
                                     .num_seqs = 1,
                                     .seq_row_begin = rows_,
                                     .positions = positions_.data(),
                                     .block_tables = &table_},
                          .output_rows = output_rows};
    const absl::Status status = executor().Run(input, model_->kv_store(), {});
    CHECK(status.ok()) << status;
  }

  std::vector<float> logits() { return {executor().logits().begin(), executor().logits().end()}; }

 private:
  std::unique_ptr<model::GgufFile> file_;
  std::unique_ptr<RankModel> model_;
  std::vector<int32_t> positions_;
  int32_t rows_[2] = {0, 0};
  int32_t blocks_[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  const int32_t* table_ = blocks_;
};

TEST(ExecutorTest, GivesTheRowsThatAreAskedForInTheirOrder) {
  const TinyModel tiny;
  OneRank rank(tiny);
  const std::vector<int32_t> tokens = RandomTokens(10, tiny.vocab, 13);
  rank.Run(tokens, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  const std::vector<float> all = rank.logits();
  rank.Run(tokens, {9, 2});
  const std::vector<float> some = rank.logits();
  std::vector<float> expected(all.begin() + 9 * tiny.vocab, all.begin() + 10 * tiny.vocab);
  expected.insert(expected.end(), all.begin() + 2 * tiny.vocab, all.begin() + 3 * tiny.vocab);
  ExpectSameBits(expected, some, "rows 9 and 2");

  rank.executor().ComputeLogits({4});
  ExpectSameBits({all.begin() + 4 * tiny.vocab, all.begin() + 5 * tiny.vocab}, rank.logits(),
                 "row 4, afterwards");
  rank.executor().ComputeLogits({9, 2});
  ExpectSameBits(expected, rank.logits(), "rows 9 and 2, afterwards");
}

TEST(ExecutorTest, AStepWithoutOutputsOrRowsGivesNoLogits) {
  OneRank rank({});
  rank.Run({1, 2, 3}, {});
  EXPECT_TRUE(rank.executor().logits().empty());
  rank.Run({}, {});
  EXPECT_TRUE(rank.executor().logits().empty());
  EXPECT_EQ(rank.executor().FirstNonfiniteRow(), -1);
  EXPECT_STREQ(rank.executor().current_op(), "");
}

TEST(ExecutorTest, FindsTheFirstRowThatIsNotFinite) {
  const TinyModel tiny;
  OneRank rank(tiny);
  rank.Run({1, 2, 3, 4}, {0, 1, 2, 3});
  EXPECT_EQ(rank.executor().FirstNonfiniteRow(), -1);
  auto* logits = const_cast<float*>(rank.executor().logits().data());
  logits[3 * tiny.vocab] = HUGE_VALF;
  EXPECT_EQ(rank.executor().FirstNonfiniteRow(), 3);
  logits[2 * tiny.vocab + 77] = NAN;
  EXPECT_EQ(rank.executor().FirstNonfiniteRow(), 2);
}

// The first step of one rank of two, whose peer never comes: when it waits for the peer in `op`,
// the peer aborts. `kind`: how the two are related.
void ExpectAbortWhileWaiting(RankModel::Options options, int rank,
                             parallel::Transport* Peers::*kind, const char* op) {
  const auto file = MakeTinyFile({});
  options.available_bytes = 0;
  const auto model = RankModel::Load(*file, options, Cpu()(), nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto transports = parallel::NewLocalTransports(
      {.size = 2, .op_timeout = absl::Seconds(60), .allow_spin = false});
  ASSERT_TRUE(transports.ok()) << transports.status();
  Peers peers;
  peers.*kind = (*transports)[rank].get();
  const int32_t zero = 0;
  const int32_t rows[] = {0, 1};
  const int32_t* table = &zero;
  const StepInput input{.tokens = {&zero, 1},
                        .layout = {.rows = 1,
                                   .num_seqs = 1,
                                   .seq_row_begin = rows,
                                   .positions = &zero,
                                   .block_tables = &table},
                        .output_rows = {&zero, 1}};
  Executor& executor = (*model)->executor();
  absl::Status status;
  std::thread thread([&] { status = executor.Run(input, (*model)->kv_store(), peers); });
  while ((*transports)[rank]->wait_info().waiting_for != 1 - rank) {
    std::this_thread::yield();
  }
  EXPECT_STREQ(executor.current_op(), op);
  (*transports)[1 - rank]->Abort(absl::AbortedError("the peer gave up"));
  thread.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_NE(status.message().find("the peer gave up"), std::string::npos) << status;
  EXPECT_STREQ(executor.current_op(), "");
  EXPECT_GT(executor.wait_ns(), 0);
  EXPECT_TRUE(executor.logits().empty());
}

TEST(ExecutorTest, NamesTheOpInWhichItWaitsForAPeerAndReturnsTheReasonOfAnAbort) {
  ExpectAbortWhileWaiting(SmallOptions(2), 0, &Peers::shards, "layer 0 AllGather");
  RankModel::Options options = SmallOptions();
  options.pp = 2;
  options.stage = 1;
  ExpectAbortWhileWaiting(options, 1, &Peers::stages, "Receive");
}

TEST(ExecutorTest, ReportsProgressUpToTheWholeAndNamesItsNumerics) {
  const auto file = MakeTinyFile({});
  RankModel::Options options = SmallOptions();
  options.available_bytes = 0;
  int64_t last = 0;
  int64_t whole = 0;
  auto model = RankModel::Load(*file, options, Cpu()(), [&](int64_t done, int64_t total) {
    EXPECT_GT(done, last);
    last = done;
    whole = total;
  });
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(last, whole);
  EXPECT_GT(whole, 0);
  EXPECT_NE((*model)->numerics_id().find("/graph1/kv-f16"), std::string::npos);
  for (const KvType kv_type : {KvType::kBf16, KvType::kInt8, KvType::kF32}) {
    options.kv_type = kv_type;
    auto other = RankModel::Load(*file, options, Cpu()(), nullptr);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_NE((*other)->numerics_id(), (*model)->numerics_id());
  }
}

TEST(ExecutorTest, MemoryPlanForetellsWhatIsAllocated) {
  for (const TinyModel& tiny : Variants()) {
    const auto file = MakeTinyFile(tiny);
    RankModel::Options options = SmallOptions();
    options.available_bytes = 0;
    const auto plan = RankModel::Plan(*file, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto model = RankModel::Load(*file, options, Cpu()(), nullptr);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(plan->kv_cache_bytes(), (*model)->kv_bytes());
    EXPECT_EQ(plan->demand.workspace_bytes, (*model)->workspace_bytes());
    EXPECT_NEAR(static_cast<double>(plan->demand.weight_bytes) / (*model)->weight_bytes(), 1, 0.05)
        << NameOf(tiny);
    EXPECT_EQ(plan->num_blocks, 8 * 1024 / 16);
  }
}

// A NaN in a product's inputs could come out of the quantiser as a number.
TEST(ExecutorTest, RefusesWeightsThatAreNotFinite) {
  for (const std::string name : {"blk.1.attn_norm.weight", "blk.0.ffn_down.weight"}) {
    model::GgufDocument document = MakeTinyDocument({});
    for (model::GgufDocument::Tensor& tensor : document.tensors) {
      if (tensor.name == name) tensor.data.replace(4, 4, model::GgufBytes(NAN));
    }
    const std::string bytes = document.Serialize();
    const auto file = model::GgufFile::Parse(
        {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "tiny.gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    RankModel::Options options = SmallOptions();
    options.available_bytes = 0;
    const absl::Status status = RankModel::Load(**file, options, Cpu()(), nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(name), std::string::npos) << status;
  }
}

TEST(ExecutorTest, RefusesLimitsAndSizesThatDoNotFit) {
  const auto file = MakeTinyFile({});
  const auto load = [&](auto change) {
    RankModel::Options options = SmallOptions();
    options.available_bytes = 0;
    change(options);
    return RankModel::Load(*file, options, Cpu()(), nullptr).status();
  };
  const absl::Status length = load([](auto& o) { o.max_seq_len = 4096; });
  EXPECT_EQ(length.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(length.message().find("--max-seq-len is 4096; expected 1..2048"), std::string::npos)
      << length;
  EXPECT_EQ(load([](auto& o) { o.shard = 1; }).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(load([](auto& o) { o.tp = 9; }).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(load([](auto& o) { o.max_batch_tokens = -1; }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(load([](auto& o) { o.kv_bytes = 1; }).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(load([](auto& o) { o.available_bytes = 1 << 20; }).code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace shoal::worker
