#include "model/graph/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/graph/dump.h"
#include "model/graph/lower.h"
#include "tests/model_graph/tiny_graph.h"

namespace shoal::graph {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// One layer, three heads and a vocabulary of two chunks, so that two shards get different parts.
worker::TinyModel OneLayer() {
  return {.layers = 1,
          .hidden = 64,
          .heads = 3,
          .kv_heads = 3,
          .head_dim = 32,
          .ffn = 96,
          .vocab = 300,
          .matrix_type = kernels::DType::kQ8_0};
}

// The dump of golden/<name>.txt. With SHOAL_UPDATE_GOLDEN set, writes the file instead.
void ExpectGolden(const std::string& name, const std::string& text) {
  const std::string path =
      std::string(SHOAL_SOURCE_DIR "/tests/model_graph/golden/") + name + ".txt";
  if (std::getenv("SHOAL_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(text, golden.str()) << path;
}

int CountOf(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++count;
  }
  return count;
}

TEST(PassesTest, EachPassTurnsOneDumpIntoTheNext) {
  TinyGraph tiny(OneLayer());
  Graph& graph = tiny.graph;
  ExpectGolden("1_built", ToText(graph));
  tiny.Shard(2, 1);
  ExpectGolden("2_sharded", ToText(graph));
  EXPECT_TRUE(MergeProducts(&graph));
  ExpectGolden("3_merged", ToText(graph));
  EXPECT_TRUE(*FoldConstants(tiny.weights, 64, &graph));
  ExpectGolden("4_folded", ToText(graph));
  EXPECT_TRUE(QuantizeActivations(&graph));
  ExpectGolden("5_quantized", ToText(graph));
  EXPECT_TRUE(Fuse(&graph));
  ExpectGolden("6_fused", ToText(graph));
  EXPECT_TRUE(EliminateDead(&graph));
  ExpectGolden("7_eliminated", ToText(graph));
  ExpectGolden(
      "8_program",
      ToText(Lower(graph, {.max_batch_tokens = 4, .max_output_rows = 2, .max_seq_len = 64})));
}

TEST(PassesTest, EveryPassIsIdempotent) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    worker::TinyModel model{.architecture = architecture, .qkv_bias = true};
    TinyGraph tiny(model);
    tiny.RunAll(2, 0);
    const std::string text = ToText(tiny.graph);
    EXPECT_FALSE(*ShardTensorParallel(tiny.config, 2, 0, &tiny.graph));
    EXPECT_FALSE(MergeProducts(&tiny.graph));
    EXPECT_FALSE(*FoldConstants(tiny.weights, 64, &tiny.graph));
    EXPECT_FALSE(QuantizeActivations(&tiny.graph));
    EXPECT_FALSE(Fuse(&tiny.graph));
    EXPECT_FALSE(EliminateDead(&tiny.graph));
    EXPECT_EQ(ToText(tiny.graph), text) << architecture;
  }
}

TEST(PassesTest, OneShardJoinsInTheSameTreeWithoutACollective) {
  TinyGraph tiny(OneLayer());
  tiny.Shard(1, 0);
  const std::string text = ToText(tiny.graph);
  EXPECT_THAT(text, HasSubstr("leaves 32,64,96 joined {0+=1 0+=2} roots 0"));
  EXPECT_THAT(text, Not(HasSubstr("AllGather")));
}

TEST(PassesTest, AStraddledKvHeadIsHeldByBothShards) {
  // SmolLM2's heads: 9 query heads in groups of 3; the border between shards lies inside group 1.
  worker::TinyModel model{.hidden = 288, .heads = 9, .kv_heads = 3, .ffn = 96};
  TinyGraph first(model);
  first.Shard(2, 0);
  EXPECT_THAT(ToText(first.graph), HasSubstr("blk.0.attn_k.weight F32[0:64,0:288]"));
  EXPECT_THAT(ToText(first.graph), HasSubstr("kv head of 0,0,0,1,1,"));
  EXPECT_EQ(first.graph.num_kv_heads, 2);
  TinyGraph second(model);
  second.Shard(2, 1);
  EXPECT_THAT(ToText(second.graph), HasSubstr("blk.0.attn_k.weight F32[32:96,0:288]"));
  EXPECT_THAT(ToText(second.graph), HasSubstr("kv head of 0,1,1,1,"));
}

TEST(PassesTest, RefusesATensorParallelSizeThatCannotBeAndListsThoseThatCan) {
  TinyGraph tiny(OneLayer());
  const absl::Status status = ShardTensorParallel(tiny.config, 4, 0, &tiny.graph).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1, 2, 3"));
}

TEST(PassesTest, MixedSegmentsReadBothFormsOfTheRows) {
  worker::TinyModel model = OneLayer();
  model.value_type = kernels::DType::kF16;
  model.mixed_types = true;
  TinyGraph tiny(model);
  tiny.RunAll(1, 0);
  const std::string text = ToText(tiny.graph);
  EXPECT_THAT(text, HasSubstr("%1: f32[T,64], %2: q8[T,64] = RmsNorm("));
  EXPECT_THAT(text, HasSubstr("= MatMul(%1, %2; blk.0.attn_q.weight Q8_0"));
}

TEST(PassesTest, FloatWeightsNeedNoQuantisedRows) {
  worker::TinyModel model = OneLayer();
  model.matrix_type = kernels::DType::kF32;
  TinyGraph tiny(model);
  tiny.RunAll(1, 0);
  EXPECT_THAT(ToText(tiny.graph), Not(HasSubstr("q8[")));
}

TEST(PassesTest, HeadNormsAreNeverFusedIntoAnAdd) {
  TinyGraph tiny({.architecture = "qwen3"});
  tiny.RunAll(8, 0);  // one query head a shard
  const std::string text = ToText(tiny.graph);
  EXPECT_EQ(CountOf(text, "heads)"), 2 * 2);
  EXPECT_THAT(text, HasSubstr("attn_q_norm.weight[0,32), eps 1e-05, each of 1 heads)"));
}

TEST(PassesTest, RefusesRopeFactorsThatAreNotPositive) {
  for (const float factor : {0.0f, -1.0f, NAN, 1e-9f}) {
    worker::TinyModel model = OneLayer();
    model.rope_factors = true;
    model::GgufDocument document = worker::MakeTinyDocument(model);
    for (auto& tensor : document.tensors) {
      if (tensor.name == "rope_freqs.weight") {
        tensor.data.replace(0, sizeof(factor), reinterpret_cast<const char*>(&factor),
                            sizeof(factor));
      }
    }
    const std::string bytes = document.Serialize();
    const auto file = model::GgufFile::Parse(
        {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "tiny.gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    const auto config = model::ParseConfig(**file);
    const auto weights = model::Weights::Create(**file, *config);
    ASSERT_TRUE(weights.ok()) << weights.status();
    Graph graph = BuildGraph(*config, *weights);
    EXPECT_EQ(FoldConstants(*weights, 2048, &graph).status().code(),
              absl::StatusCode::kInvalidArgument)
        << factor;
  }
}

TEST(PassesTest, VocabulariesWithFewerChunksThanShardsLeaveShardsWithoutLogits) {
  TinyGraph tiny({.vocab = 300});  // two chunks
  tiny.RunAll(8, 0);
  const Program program = Lower(tiny.graph, {.max_seq_len = 64});
  EXPECT_EQ(program.logits.width, 0);
  EXPECT_THAT(ToText(program), Not(HasSubstr("MatMul head")));
}

TEST(SplitPipelineTest, StagesSendWhatCrossesTheirBorder) {
  worker::TinyModel tiny = OneLayer();
  tiny.layers = 2;
  for (int stage = 0; stage < 2; ++stage) {
    TinyGraph model(tiny);
    const auto layers = StageLayers(model.graph, 2, {});
    ASSERT_TRUE(layers.ok()) << layers.status();
    model.Shard(1, 0);
    EXPECT_TRUE(SplitPipeline(*layers, stage, &model.graph));
    EXPECT_FALSE(SplitPipeline(*layers, stage, &model.graph));
    model.graph.Validate();
    ExpectGolden(absl::StrCat("9_stage_", stage), ToText(model.graph));
  }
}

TEST(SplitPipelineTest, TheStagesOfAProgramHaveTheWholeModelOnce) {
  worker::TinyModel tiny = OneLayer();
  tiny.layers = 5;
  TinyGraph whole(tiny);
  whole.RunAll(1, 0);
  for (int pp = 2; pp <= 5; ++pp) {
    size_t num_products = 0;
    int64_t num_layers = 0;
    for (int stage = 0; stage < pp; ++stage) {
      TinyGraph part(tiny);
      part.RunAll(Placement{.pp = pp, .stage = stage});
      EXPECT_EQ(part.graph.stage.first_layer, num_layers);
      num_layers += part.graph.num_layers;
      num_products += CountOf(ToText(part.graph), "MatMul");
      EXPECT_EQ(CountOf(ToText(part.graph), "Send("), stage < pp - 1);
      EXPECT_EQ(CountOf(ToText(part.graph), "Receive("), stage > 0);
    }
    EXPECT_EQ(num_layers, 5);
    EXPECT_EQ(num_products, CountOf(ToText(whole.graph), "MatMul"));
  }
}

}  // namespace
}  // namespace shoal::graph
