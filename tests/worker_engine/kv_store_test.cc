#include "worker/engine/kv_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/reference/reference_backend.h"

namespace shoal::worker {
namespace {

constexpr KvShape kShape{.num_layers = 3, .kv_heads = 2, .head_dim = 32};

char* Page(const KvStore& store, int64_t layer, int64_t block) {
  return static_cast<char*>(store.layer(layer).base) + block * store.shape().PageBytes();
}

TEST(KvStoreTest, CountsBytesOfBlocks) {
  EXPECT_EQ(kShape.PageBytes(), 2 * 2 * 16 * 32 * 2);
  EXPECT_EQ(kShape.BlockBytes(), 3 * kShape.PageBytes());
  KvShape f32 = kShape;
  f32.type = kernels::KvType::kF32;
  EXPECT_EQ(f32.BlockBytes(), 2 * kShape.BlockBytes());
  KvShape int8 = kShape;
  int8.type = kernels::KvType::kInt8;
  EXPECT_EQ(int8.PageBytes(), kShape.PageBytes() / 2 + 2 * 2 * 16 * 4) << "scales of K and V";
  EXPECT_EQ(kShape.BlocksThatFit(10 * kShape.BlockBytes() + 1), 10);
  EXPECT_EQ(kShape.BlocksThatFit(kShape.BlockBytes() - 1), 0);
}

TEST(KvStoreTest, LayersDoNotOverlapAndFillTheAllocation) {
  const auto backend = kernels::NewReferenceBackend();
  const auto store = KvStore::Create(kShape, 5, backend.get());
  ASSERT_TRUE(store.ok()) << store.status();
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (int64_t block = 0; block < 5; ++block) {
      std::memset(Page(**store, layer, block), static_cast<int>(10 * layer + block),
                  kShape.PageBytes());
    }
  }
  for (int64_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ((*store)->layer(layer).num_pages, 5);
    for (int64_t block = 0; block < 5; ++block) {
      EXPECT_EQ(*Page(**store, layer, block), 10 * layer + block);
      EXPECT_EQ(Page(**store, layer, block)[kShape.PageBytes() - 1], 10 * layer + block);
    }
  }
  EXPECT_EQ((*store)->size_bytes(), 5 * kShape.BlockBytes());
}

TEST(KvStoreTest, CopiesABlockInEveryLayerAndNothingElse) {
  const auto backend = kernels::NewReferenceBackend();
  const auto store = KvStore::Create(kShape, 3, backend.get());
  ASSERT_TRUE(store.ok()) << store.status();
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (int64_t block = 0; block < 3; ++block) {
      std::memset(Page(**store, layer, block), static_cast<int>(10 * layer + block),
                  kShape.PageBytes());
    }
  }
  (*store)->CopyBlock(0, 2);
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (int64_t block = 0; block < 3; ++block) {
      const std::vector<char> expected(kShape.PageBytes(),
                                       static_cast<char>(10 * layer + (block == 2 ? 0 : block)));
      EXPECT_EQ(std::memcmp(Page(**store, layer, block), expected.data(), expected.size()), 0)
          << "layer " << layer << " block " << block;
    }
  }
}

TEST(KvStoreDeathTest, ChecksThatBlocksExist) {
  const auto backend = kernels::NewReferenceBackend();
  const auto store = KvStore::Create(kShape, 3, backend.get());
  EXPECT_DEATH((*store)->CopyBlock(0, 3), "");
  EXPECT_DEATH((*store)->CopyBlock(-1, 0), "");
}

}  // namespace
}  // namespace shoal::worker
