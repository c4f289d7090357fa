#include "parallel/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace shoal::parallel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string MessageOf(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(ShardAttentionTest, SplitsSmolLm2UnevenlyAndReplicatesTheStraddledKvHead) {
  const AttentionDims dims = {9, 3, 64};
  const AttentionShard first = ShardAttention(dims, 2, 0).value();
  EXPECT_EQ(first.q_heads, (Range{0, 5}));
  EXPECT_EQ(first.kv_heads, (Range{0, 2}));
  EXPECT_EQ(first.leaves, (Range{0, 4}));
  EXPECT_EQ(first.columns, (Range{0, 320}));
  const AttentionShard second = ShardAttention(dims, 2, 1).value();
  EXPECT_EQ(second.q_heads, (Range{5, 9}));
  EXPECT_EQ(second.kv_heads, (Range{1, 3}));
  EXPECT_EQ(second.leaves, (Range{4, 8}));
  EXPECT_EQ(second.columns, (Range{320, 576}));
  // Heads 5 | 6 7 8 use KV heads 1 | 2 2 2, counted from 1.
  EXPECT_EQ(second.LocalKvHead(0), 0);
  EXPECT_EQ(second.LocalKvHead(1), 1);
  EXPECT_EQ(second.LocalKvHead(3), 1);
}

TEST(ShardAttentionTest, GivesTheLongLeafToTheSmallerShare) {
  // Nine heads are leaves of 2 1 1 1 1 1 1 1: at tp = 3 shares of 2, 3 and 3 leaves are 3 heads
  // each.
  for (int shard = 0; shard < 3; ++shard) {
    EXPECT_EQ(ShardAttention({9, 3, 64}, 3, shard)->q_heads, (Range{shard * 3, shard * 3 + 3}));
  }
}

TEST(ShardAttentionTest, ShardsTileHeadsLeavesAndColumnsAtEverySize) {
  for (const int head_dim : {8, 16, 32, 48, 64, 72, 80, 96, 128, 256}) {
    for (int heads = 1; heads <= 40; ++heads) {
      for (int kv_heads = 1; kv_heads <= heads; ++kv_heads) {
        if (heads % kv_heads != 0) continue;
        const AttentionDims dims = {heads, kv_heads, head_dim};
        const ColumnTree columns = AttentionColumns(dims).value();
        for (int tp = 1; tp <= 8; ++tp) {
          if (!ShardAttention(dims, tp, 0).ok()) continue;
          int64_t next_head = 0, next_leaf = 0;
          for (int shard = 0; shard < tp; ++shard) {
            const AttentionShard s = ShardAttention(dims, tp, shard).value();
            ASSERT_EQ(s.q_heads.begin, next_head);
            ASSERT_EQ(s.leaves.begin, next_leaf);
            ASSERT_GT(s.q_heads.size(), 0);
            ASSERT_EQ(s.columns, (Range{s.q_heads.begin * head_dim, s.q_heads.end * head_dim}));
            ASSERT_EQ(tp > 1 ? s.columns.begin % 32 : 0, 0);
            ASSERT_EQ(s.columns.begin, columns.LeafColumns(s.leaves.begin).begin);
            ASSERT_EQ(s.columns.end, columns.LeafColumns(s.leaves.end - 1).end);
            for (int64_t q = 0; q < s.q_heads.size(); ++q) {
              const int64_t kv = (s.q_heads.begin + q) / (heads / kv_heads);
              ASSERT_EQ(s.kv_heads.begin + s.LocalKvHead(q), kv);
              ASSERT_TRUE(s.kv_heads.begin <= kv && kv < s.kv_heads.end);
            }
            next_head = s.q_heads.end;
            next_leaf = s.leaves.end;
          }
          ASSERT_EQ(next_head, heads);
          ASSERT_EQ(next_leaf, columns.tree.num_leaves());
        }
      }
    }
  }
}

TEST(ShardAttentionTest, GroupsHeadsUntilColumnsAreAligned) {
  EXPECT_EQ(AttentionColumns({8, 8, 64})->columns_per_unit, 64);
  EXPECT_EQ(AttentionColumns({8, 8, 80})->columns_per_unit, 160);
  EXPECT_EQ(AttentionColumns({8, 8, 72})->columns_per_unit, 288);
  EXPECT_EQ(AttentionColumns({8, 8, 8})->columns_per_unit, 32);
  // Eight heads of 72 are two units of four heads.
  EXPECT_EQ(ShardAttention({8, 8, 72}, 2, 1)->q_heads, (Range{4, 8}));
  EXPECT_FALSE(ShardAttention({8, 8, 72}, 3, 1).ok());
}

TEST(ShardAttentionTest, HeadsThatEndInsideABlockRunOnOneRankOnly) {
  const AttentionDims dims = {3, 3, 16};  // 48 columns: a unit of 32 and a short one
  const AttentionShard whole = ShardAttention(dims, 1, 0).value();
  EXPECT_EQ(whole.q_heads, (Range{0, 3}));
  EXPECT_EQ(whole.columns, (Range{0, 48}));
  EXPECT_EQ(AttentionColumns(dims)->LeafColumns(1), (Range{32, 48}));
  EXPECT_THAT(MessageOf(ShardAttention(dims, 2, 0).status()), HasSubstr("legal sizes: 1;"));
}

// Behaviour case C83: refused at the door, with the legal sizes.
TEST(ShardAttentionTest, RefusalNamesHeadsSizeAndLegalSizes) {
  const std::string message = MessageOf(ShardAttention({4, 2, 64}, 8, 0).status());
  EXPECT_THAT(message, HasSubstr("tensor parallel size 8"));
  EXPECT_THAT(message, HasSubstr("4 heads (2 KV heads, head size 64)"));
  EXPECT_THAT(message, HasSubstr("legal sizes: 1, 2, 3, 4;"));
}

TEST(ShardAttentionTest, SizesThatOtherEnginesRefuseAreLegal) {
  for (const int heads : {12, 52, 28, 9, 14}) {
    EXPECT_TRUE(ShardAttention({heads, 1, 64}, 8, 7).ok()) << heads;
  }
}

TEST(ShardAttentionTest, RefusesImpossibleDimensions) {
  EXPECT_THAT(MessageOf(AttentionColumns({0, 1, 64}).status()), HasSubstr("0 heads"));
  EXPECT_THAT(MessageOf(AttentionColumns({4, 0, 64}).status()), HasSubstr("0 KV heads"));
  EXPECT_THAT(MessageOf(AttentionColumns({4, 2, -1}).status()), HasSubstr("head size -1"));
  EXPECT_THAT(MessageOf(AttentionColumns({9, 2, 64}).status()), HasSubstr("divide"));
  EXPECT_TRUE(ShardAttention({1 << 30, 1 << 30, 1 << 30}, 8, 7).ok());  // no overflow
}

TEST(ShardFfnTest, CutsAtBlocksOfThirtyTwoAndTiles) {
  for (const int ffn : {256, 288, 1536, 11008, 14336, 4864}) {
    for (int tp = 1; tp <= 8; ++tp) {
      int64_t next = 0;
      for (int shard = 0; shard < tp; ++shard) {
        const FfnShard s = ShardFfn(ffn, tp, shard).value();
        ASSERT_EQ(s.rows.begin, next);
        ASSERT_EQ(s.rows.end % 32, 0);
        ASSERT_GT(s.rows.size(), 0);
        next = s.rows.end;
      }
      ASSERT_EQ(next, ffn);
    }
  }
}

TEST(ShardFfnTest, ASizeWithAShortBlockRunsOnOneRankOnly) {
  EXPECT_EQ(ShardFfn(100, 1, 0)->rows, (Range{0, 100}));
  EXPECT_EQ(FfnColumns(100)->LeafColumns(3), (Range{96, 100}));
  EXPECT_THAT(MessageOf(ShardFfn(100, 2, 0).status()), HasSubstr("FFN of 100"));
  EXPECT_THAT(MessageOf(ShardFfn(0, 1, 0).status()), HasSubstr("FFN size 0"));
  EXPECT_THAT(MessageOf(ShardFfn(64, 3, 0).status()), HasSubstr("legal sizes: 1, 2;"));
}

TEST(ShardVocabTest, ShardsOwnWholeChunksAndTile) {
  for (const int vocab : {1, 255, 256, 257, 1000, 32001, 49152, 151936}) {
    for (int tp = 1; tp <= 8; ++tp) {
      int64_t next = 0;
      for (int shard = 0; shard < tp; ++shard) {
        const VocabShard s = ShardVocab(vocab, tp, shard).value();
        ASSERT_EQ(s.tokens.begin, next);
        ASSERT_EQ(s.tokens.begin, std::min<int64_t>(s.chunks.begin * 256, vocab));
        next = s.tokens.end;
      }
      ASSERT_EQ(next, vocab);
    }
  }
  EXPECT_EQ(ShardVocab(32001, 2, 1)->tokens, (Range{16128, 32001}));
  EXPECT_TRUE(ShardVocab(256, 2, 0)->tokens.empty());
  EXPECT_THAT(MessageOf(ShardVocab(0, 1, 0).status()), HasSubstr("0 tokens"));
}

std::vector<int64_t> Sizes(const std::vector<Range>& stages) {
  std::vector<int64_t> sizes;
  int64_t next = 0;
  for (const Range& stage : stages) {
    EXPECT_EQ(stage.begin, next);
    next = stage.end;
    sizes.push_back(stage.size());
  }
  return sizes;
}

TEST(SplitLayersTest, StagesTileTheLayersAndDifferByAtMostOneWhenAllCostTheSame) {
  for (const int layers : {5, 6, 7, 30}) {
    for (int pp = 1; pp <= 5; ++pp) {
      const std::vector<int64_t> sizes =
          Sizes(SplitLayers(std::vector<int64_t>(layers, 10), 0, pp).value());
      ASSERT_EQ(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), layers);
      for (const int64_t size : sizes) {
        ASSERT_GE(size, layers / pp);
        ASSERT_LE(size, (layers + pp - 1) / pp);
      }
    }
  }
  EXPECT_THAT(MessageOf(SplitLayers({1, 1, 1}, 0, 4).status()), HasSubstr("1..3"));
}

TEST(SplitLayersTest, TheHeadMakesTheLastStageShorter) {
  const std::vector<int64_t> layers(30, 35);  // SmolLM2-135M, in 100,000 weights
  EXPECT_THAT(Sizes(SplitLayers(layers, 283, 2).value()), ElementsAre(19, 11));
  EXPECT_THAT(Sizes(SplitLayers(layers, 283, 3).value()), ElementsAre(13, 13, 4));
  EXPECT_THAT(Sizes(SplitLayers({9, 1, 1, 1}, 0, 2).value()), ElementsAre(1, 3));
  EXPECT_THAT(Sizes(SplitLayers({1, 1, 1, 1}, 100, 3).value()), ElementsAre(1, 2, 1));
}

TEST(TakeLayersTest, TakesWhatMakesTheModel) {
  EXPECT_THAT(Sizes(TakeLayers({4, 1, 5}, 10, 3).value()), ElementsAre(4, 1, 5));
  for (const std::vector<int64_t>& counts :
       std::vector<std::vector<int64_t>>{{5, 4}, {5, 6}, {10}, {10, 0}, {11, -1}, {3, 3, 4}}) {
    const absl::Status status = TakeLayers(counts, 10, 2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr("has 10 layers for 2 stages"), HasSubstr("--stage-layers")));
  }
}

TEST(LegalTensorParallelSizesTest, AreThoseOfAttentionAndFfnTogether) {
  EXPECT_THAT(LegalTensorParallelSizes({9, 3, 64}, 1536).value(),
              ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(LegalTensorParallelSizes({4, 2, 64}, 1536).value(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(LegalTensorParallelSizes({9, 3, 64}, 96).value(), ElementsAre(1, 2, 3));
  EXPECT_THAT(LegalTensorParallelSizes({9, 3, 64}, 100).value(), ElementsAre(1));
  EXPECT_THAT(LegalTensorParallelSizes({3, 3, 16}, 1536).value(), ElementsAre(1));
  EXPECT_TRUE(CheckTensorParallelSize({9, 3, 64}, 96, 3).ok());
  EXPECT_THAT(MessageOf(CheckTensorParallelSize({9, 3, 64}, 96, 4)),
              HasSubstr("9 heads (3 KV heads, head size 64) and an FFN of 96; legal sizes: "
                        "1, 2, 3;"));
  EXPECT_FALSE(CheckTensorParallelSize({9, 3, 64}, 96, 0).ok());
}

}  // namespace
}  // namespace shoal::parallel
