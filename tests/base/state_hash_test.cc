#include "base/state_hash.h"

#include "gtest/gtest.h"

namespace shoal::base {
namespace {

TEST(StateHashTest, DependsOnStateAndNotOnTheOrderOfSlots) {
  StateHash a;
  a.OnStart(0, 0, {5, 6});
  a.OnStart(1, 16, {7});
  StateHash b;
  b.OnStart(1, 16, {7});
  b.OnStart(0, 0, {5, 6});
  EXPECT_EQ(a.value(), b.value());
}

TEST(StateHashTest, SeesPositionsBlocksAndTheirOrder) {
  const auto value = [](uint64_t position, std::vector<uint32_t> blocks) {
    StateHash hash;
    hash.OnStart(3, position, blocks);
    return hash.value();
  };
  EXPECT_NE(value(0, {5, 6}), value(1, {5, 6}));
  EXPECT_NE(value(0, {5, 6}), value(0, {6, 5}));
  EXPECT_NE(value(0, {5, 6}), value(0, {5}));
}

TEST(StateHashTest, GrowingEqualsStartingThere) {
  StateHash grown;
  grown.OnStart(2, 0, {1});
  grown.OnBlocks(2, {9});
  grown.OnAdvance(2, 20);
  StateHash started;
  started.OnStart(2, 20, {1, 9});
  EXPECT_EQ(grown.value(), started.value());
  grown.OnEnd(2);
  EXPECT_EQ(grown.value(), StateHash().value());
}

TEST(TokenHashTest, SeesSlotsTokensAndOrder) {
  const uint64_t a = AddToTokenHash(kTokenHashSeed, 1, {10});
  EXPECT_NE(a, AddToTokenHash(kTokenHashSeed, 2, {10}));
  EXPECT_NE(a, AddToTokenHash(kTokenHashSeed, 1, {11}));
  EXPECT_NE(a, AddToTokenHash(kTokenHashSeed, 1, {}));
  EXPECT_NE(AddToTokenHash(a, 2, {10}),
            AddToTokenHash(AddToTokenHash(kTokenHashSeed, 2, {10}), 1, {10}));
}

}  // namespace
}  // namespace shoal::base
