#include "parallel/join_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

namespace shoal::parallel {
namespace {

using Vector = std::vector<float>;

// An independent statement of the rule: halve at ceil(n / 2), at most three times, left + right.
Vector SumByDefinition(const std::vector<Vector>& leaves, const JoinTree& tree, Range units,
                       int depth) {
  if (depth == 3 || units.size() == 1) {
    for (int i = 0; i < tree.num_leaves(); ++i) {
      if (tree.leaf(i) == units) return leaves[i];
    }
    ADD_FAILURE() << "no leaf has units [" << units.begin << ", " << units.end << ")";
    return leaves[0];
  }
  const int64_t middle = units.begin + (units.size() + 1) / 2;
  Vector left = SumByDefinition(leaves, tree, {units.begin, middle}, depth + 1);
  const Vector right = SumByDefinition(leaves, tree, {middle, units.end}, depth + 1);
  for (size_t i = 0; i < left.size(); ++i) left[i] = left[i] + right[i];
  return left;
}

// Values of very different size, so that another order of additions gives other bits.
std::vector<Vector> RandomLeaves(int num_leaves, size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Vector> leaves(num_leaves, Vector(n));
  for (Vector& leaf : leaves) {
    for (float& value : leaf) {
      const float mantissa = static_cast<float>(random() % 20001) / 10000.0f - 1.0f;
      value = std::ldexp(mantissa, static_cast<int>(random() % 24));
    }
  }
  return leaves;
}

bool SameBits(const Vector& a, const Vector& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

Vector RunSteps(std::vector<Vector> accumulators, const std::vector<JoinStep>& steps) {
  for (const JoinStep& step : steps) {
    for (size_t i = 0; i < accumulators[0].size(); ++i) {
      accumulators[step.dst][i] += accumulators[step.src][i];
    }
  }
  return accumulators[0];
}

// The sum when the ranks own the runs of leaves between `cuts`: each joins the leaves of its
// subtrees, all join the partial sums.
Vector SumOverRanks(const JoinTree& tree, const std::vector<Vector>& leaves,
                    const std::vector<int>& cuts) {
  std::vector<Subtree> subtrees;
  std::vector<Vector> partials;
  for (size_t rank = 0; rank + 1 < cuts.size(); ++rank) {
    for (const Subtree& s : tree.MaximalSubtrees({cuts[rank], cuts[rank + 1]})) {
      subtrees.push_back(s);
      partials.push_back(RunSteps({leaves.begin() + s.leaves.begin, leaves.begin() + s.leaves.end},
                                  tree.JoinSteps(s)));
    }
  }
  return RunSteps(partials, tree.JoinStepsBetween(subtrees));
}

TEST(JoinTreeTest, LeavesTileTheUnitsAndAreAtMostEight) {
  for (int64_t n = 1; n <= 1000; ++n) {
    const JoinTree tree = JoinTree::Create(n);
    ASSERT_EQ(tree.num_units(), n);
    ASSERT_EQ(tree.num_leaves(), std::min<int64_t>(8, n));
    int64_t next = 0;
    for (int i = 0; i < tree.num_leaves(); ++i) {
      ASSERT_EQ(tree.leaf(i).begin, next);
      ASSERT_GT(tree.leaf(i).size(), 0);
      next = tree.leaf(i).end;
    }
    ASSERT_EQ(next, n);
  }
}

TEST(JoinTreeTest, HalvesNineUnitsAsDrawn) {
  const JoinTree tree = JoinTree::Create(9);
  const int64_t borders[] = {0, 2, 3, 4, 5, 6, 7, 8, 9};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(tree.leaf(i), (Range{borders[i], borders[i + 1]}));
  EXPECT_EQ(tree.UnitsOf({0, 4}), (Range{0, 5}));
}

TEST(JoinTreeTest, ARunOfLeavesIsTheFewestSubtreesInOrder) {
  const JoinTree tree = JoinTree::Create(64);
  const auto leaves_of = [&](Range run) {
    std::vector<Range> leaves;
    for (const Subtree& s : tree.MaximalSubtrees(run)) leaves.push_back(s.leaves);
    return leaves;
  };
  EXPECT_EQ(leaves_of({0, 8}), (std::vector<Range>{{0, 8}}));
  EXPECT_EQ(leaves_of({1, 7}), (std::vector<Range>{{1, 2}, {2, 4}, {4, 6}, {6, 7}}));
  EXPECT_EQ(leaves_of({3, 5}), (std::vector<Range>{{3, 4}, {4, 5}}));
  EXPECT_EQ(leaves_of({4, 4}), (std::vector<Range>{}));
  EXPECT_EQ(tree.MaximalSubtrees({4, 8})[0].units, (Range{32, 64}));
}

TEST(JoinTreeTest, StepsJoinTheLeavesOfASubtree) {
  const JoinTree tree = JoinTree::Create(5);  // [0,3) -> 0 1 | 2; [3,5) -> 3 | 4
  EXPECT_EQ(tree.JoinSteps(tree.root()), (std::vector<JoinStep>{{0, 1}, {0, 2}, {3, 4}, {0, 3}}));
  EXPECT_EQ(tree.JoinSteps(tree.MaximalSubtrees({3, 5})[0]), (std::vector<JoinStep>{{0, 1}}));
  EXPECT_TRUE(tree.JoinSteps(tree.MaximalSubtrees({2, 3})[0]).empty());
}

// Every way of cutting the leaves into consecutive runs is a bit mask of the inner borders.
TEST(JoinTreeTest, EverySplitOverRanksHasTheSameBits) {
  for (int64_t num_units = 1; num_units <= 64; ++num_units) {
    const JoinTree tree = JoinTree::Create(num_units);
    const int num_leaves = tree.num_leaves();
    const auto leaves = RandomLeaves(num_leaves, 37, static_cast<uint32_t>(num_units));
    const Vector expected = SumByDefinition(leaves, tree, {0, num_units}, 0);
    for (int mask = 0; mask < 1 << (num_leaves - 1); ++mask) {
      std::vector<int> cuts = {0};
      for (int border = 1; border < num_leaves; ++border) {
        if (mask >> (border - 1) & 1) cuts.push_back(border);
      }
      cuts.push_back(num_leaves);
      ASSERT_TRUE(SameBits(SumOverRanks(tree, leaves, cuts), expected))
          << num_units << " units, cut mask " << mask;
    }
  }
}

TEST(JoinTreeTest, PartsAreNumberedAndTheirInnerStepsLeftOut) {
  const JoinTree tree = JoinTree::Create(8);
  std::vector<Subtree> parts;
  for (const Range run : {Range{0, 3}, Range{3, 8}}) {
    for (const Subtree& s : tree.MaximalSubtrees(run)) parts.push_back(s);
  }
  // [0,2) [2,3) | [3,4) [4,8)
  EXPECT_EQ(tree.JoinStepsBetween(parts), (std::vector<JoinStep>{{1, 2}, {0, 1}, {0, 3}}));
  EXPECT_TRUE(tree.JoinStepsBetween({tree.root()}).empty());
}

// The property tests above would prove nothing if the order did not matter for this data.
TEST(JoinTreeTest, TheDataTellsOrdersApart) {
  const auto leaves = RandomLeaves(8, 37, 8);
  Vector in_order = leaves[0];
  for (int i = 1; i < 8; ++i) {
    for (size_t j = 0; j < 37; ++j) in_order[j] += leaves[i][j];
  }
  EXPECT_FALSE(SameBits(in_order, SumByDefinition(leaves, JoinTree::Create(8), {0, 8}, 0)));
}

TEST(JoinTreeDeathTest, RefusesMissingLeavesAndForeignSubtrees) {
  const JoinTree tree = JoinTree::Create(8);
  EXPECT_DEATH(tree.JoinStepsBetween(tree.MaximalSubtrees({0, 4})), "missing");
  EXPECT_DEATH(tree.JoinStepsBetween(tree.MaximalSubtrees({4, 8})), "gap");
  EXPECT_DEATH(tree.JoinStepsBetween({JoinTree::Create(9).root()}), "another tree");
}

}  // namespace
}  // namespace shoal::parallel
