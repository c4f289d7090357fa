#include "model/graph/describe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/worker_engine/tiny_model.h"

namespace shoal::graph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class DescribeTest : public ::testing::Test {
 protected:
  DescribeTest() : path_(::testing::TempDir() + "describe_" + std::to_string(getpid()) + ".gguf") {
    std::ofstream(path_, std::ios::binary) << worker::MakeTinyDocument({}).Serialize();
  }
  ~DescribeTest() override { std::remove(path_.c_str()); }

  std::string Describe(int tp, int shard, const char* after, const char* format) {
    return Describe(Placement{.tp = tp, .shard = shard}, after, format);
  }
  std::string Describe(const Placement& placement, const char* after, const char* format) {
    const auto text = DescribeGraph(path_, placement, after, format);
    return text.ok() ? *text : text.status().ToString();
  }

  const std::string path_;
};

TEST_F(DescribeTest, ShowsEachStage) {
  EXPECT_THAT(Describe(1, 0, "built", "text"), StartsWith("graph llama\n"));
  EXPECT_THAT(Describe(2, 1, "sharded", "text"), StartsWith("graph llama tp 2 shard 1\n"));
  EXPECT_THAT(Describe(2, 1, "fused", "text"), HasSubstr("norm const blk.0.ffn_norm.weight"));
  EXPECT_THAT(Describe(2, 1, "program", "text"), HasSubstr("layer 1 AllGather("));
}

TEST_F(DescribeTest, ShowsPipelineStages) {
  const Placement first{.pp = 2, .stage = 0};
  const Placement last{.pp = 2, .stage = 1};
  EXPECT_THAT(Describe(first, "split", "text"),
              AllOf(StartsWith("graph llama tp 1 shard 0, pp 2 stage 0: layers 0 to 0\n"),
                    HasSubstr("  Send("), Not(HasSubstr("return"))));
  EXPECT_THAT(Describe(last, "split", "text"),
              AllOf(HasSubstr(" = Receive()"), HasSubstr("layer 1"), Not(HasSubstr("layer 0")),
                    HasSubstr("return")));
  EXPECT_THAT(Describe(last, "program", "text"), HasSubstr("Receive"));
  EXPECT_THAT(Describe(first, "fused", "dot"), Not(HasSubstr("logits")));
  EXPECT_THAT(Describe({.pp = 2, .stage = 2}, "built", "text"),
              HasSubstr("pipeline stage 2 is not in 0..1"));
  EXPECT_THAT(Describe({.pp = 3, .stage = 2}, "split", "text"), StartsWith("INVALID_ARGUMENT"));
}

TEST_F(DescribeTest, DrawsGraphsAndPrograms) {
  const std::string graph = Describe(1, 0, "fused", "dot");
  EXPECT_THAT(graph, StartsWith("digraph \"llama\" {"));
  EXPECT_THAT(graph, HasSubstr("n0 -> n1 [label=\"%0: f32[T,256]\"];"));
  EXPECT_THAT(graph, HasSubstr("-> logits"));
  EXPECT_THAT(Describe(1, 0, "program", "dot"), HasSubstr("n0 -> n1;"));
}

TEST_F(DescribeTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(Describe(1, 0, "lowered", "text"),
              HasSubstr("expected built, sharded, split, fused"));
  EXPECT_THAT(Describe(1, 0, "built", "svg"), HasSubstr("expected text or dot"));
  EXPECT_THAT(Describe(2, 2, "built", "text"), HasSubstr("shard 2 is not in 0..1"));
  EXPECT_THAT(Describe(9, 0, "sharded", "text"), StartsWith("INVALID_ARGUMENT"));
  EXPECT_THAT(std::string(DescribeGraph("/nowhere.gguf", {}, "built", "text").status().message()),
              HasSubstr("/nowhere.gguf"));
}

}  // namespace
}  // namespace shoal::graph
