#include "base/state_hash.h"

#include "gtest/gtest.h"

namespace shoal::base {
namespace {

StateHash TwoSlots() {
  StateHash hash;
  hash.OnStart(0, 16, {3, 4});
  hash.OnStart(2, 0, {5});
  return hash;
}

TEST(StateHashTest, TheOrderOfSlotsDoesNotMatter) {
  StateHash other;
  other.OnStart(2, 0, {5});
  other.OnStart(0, 16, {3, 4});
  EXPECT_EQ(TwoSlots().value(), other.value());
}

TEST(StateHashTest, HowAStateWasReachedDoesNotMatter) {
  StateHash other;
  other.OnStart(0, 10, {3});
  other.OnBlocks(0, {4});
  other.OnAdvance(0, 5);
  other.OnAdvance(0, 1);
  other.OnStart(2, 9, {9, 9});
  other.OnEnd(2);
  other.OnStart(2, 0, {5});
  EXPECT_EQ(TwoSlots().value(), other.value());
}

TEST(StateHashTest, EveryDifferenceShows) {
  const uint64_t value = TwoSlots().value();
  StateHash position = TwoSlots();
  position.OnAdvance(2, 1);
  EXPECT_NE(position.value(), value);
  StateHash table = TwoSlots();
  table.OnBlocks(2, {6});
  EXPECT_NE(table.value(), value);
  StateHash ended = TwoSlots();
  ended.OnEnd(2);
  EXPECT_NE(ended.value(), value);
  StateHash order;
  order.OnStart(0, 16, {4, 3});
  order.OnStart(2, 0, {5});
  EXPECT_NE(order.value(), value);
  StateHash swapped;  // the same two sequences in each other's slots
  swapped.OnStart(2, 16, {3, 4});
  swapped.OnStart(0, 0, {5});
  EXPECT_NE(swapped.value(), value);
}

TEST(StateHashTest, NoSlotsIsZero) {
  StateHash hash = TwoSlots();
  hash.OnEnd(0);
  hash.OnEnd(2);
  EXPECT_EQ(hash.value(), 0u);
  hash = TwoSlots();
  hash.Clear();
  EXPECT_EQ(hash.value(), 0u);
  hash.OnStart(0, 16, {3, 4});
  EXPECT_TRUE(hash.is_live(0));
  EXPECT_FALSE(hash.is_live(2));
}

TEST(TokenHashTest, EveryDifferenceShows) {
  const uint64_t value = AddToTokenHash(kTokenHashSeed, 1, {7});
  EXPECT_NE(AddToTokenHash(kTokenHashSeed, 2, {7}), value);
  EXPECT_NE(AddToTokenHash(kTokenHashSeed, 1, {8}), value);
  EXPECT_NE(AddToTokenHash(kTokenHashSeed, 1, {}), value);
  EXPECT_NE(AddToTokenHash(AddToTokenHash(kTokenHashSeed, 1, {7}), 2, {8}),
            AddToTokenHash(AddToTokenHash(kTokenHashSeed, 2, {8}), 1, {7}));
}

TEST(StateHashDeathTest, SlotsStartOnceAndEndOnce) {
  StateHash hash = TwoSlots();
  EXPECT_DEATH(hash.OnStart(0, 0, {}), "starts twice");
  EXPECT_DEATH(hash.OnAdvance(1, 1), "not live");
}

}  // namespace
}  // namespace shoal::base
