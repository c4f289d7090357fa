#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/ops.h"

namespace shoal::parallel {

// Half open: [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  bool Contains(const Range& other) const { return begin <= other.begin && other.end <= end; }
  bool operator==(const Range&) const = default;
};

// A complete subtree of a JoinTree: a node with everything below it.
struct Subtree {
  int node = 0;  // JoinTree's own index
  Range leaves;
  Range units;

  bool operator==(const Subtree&) const = default;
};

// Elementwise; dst < src.
using kernels::JoinStep;

// The one order in which the partial sums of a row-parallel product are added. K is counted in
// units (query heads or blocks of 32 columns). The range of units is halved at ceil(n / 2) up to
// three times, which gives min(8, n) leaves; inside a leaf K goes in order; two halves are joined
// as left + right.
//
//   9 units:              [0,9)
//                 [0,5)          [5,9)
//             [0,3)  [3,5)    [5,7)  [7,9)
//           [0,2) 2  3   4    5   6  7   8        8 leaves, the first has two units
//
// The tree depends on the model alone, never on the number of ranks. A rank that owns consecutive
// leaves evaluates its maximal complete subtrees and sends one partial sum for each; every rank
// then joins the partial sums of all ranks in the one tree, so the bits do not depend on the split.
//
// An immutable value without allocations; any thread.
class JoinTree {
 public:
  static constexpr int kMaxLeaves = 8;

  // REQUIRES: num_units >= 1.
  static JoinTree Create(int64_t num_units);

  int64_t num_units() const { return nodes_[0].units.end; }
  int num_leaves() const { return static_cast<int>(nodes_[0].leaves.end); }
  // The units of leaf `index`.
  Range leaf(int index) const;
  // The units of a run of consecutive leaves.
  Range UnitsOf(Range leaves) const;
  Subtree root() const { return {0, nodes_[0].leaves, nodes_[0].units}; }

  // The fewest complete subtrees that make up `leaves`, from left to right.
  std::vector<Subtree> MaximalSubtrees(Range leaves) const;

  // How to sum the leaves of one subtree where they were computed: with one accumulator a leaf,
  // numbered from the subtree's first leaf, run the steps in order; accumulator 0 has the sum.
  // For a subtree of L leaves there are L - 1 steps.
  std::vector<JoinStep> JoinSteps(const Subtree& subtree) const;

  // How to sum the partial sums of subtrees that together are all leaves, from left to right, in
  // the order of the tree: accumulators are numbered by part, and the first one has the sum. For P
  // parts there are P - 1 steps.
  std::vector<JoinStep> JoinStepsBetween(absl::Span<const Subtree> parts) const;

 private:
  struct Node {
    Range units;
    Range leaves;
    int left = -1;  // -1: a leaf
    int right = -1;
  };

  JoinTree() = default;
  int Build(Range units, int depth, int* num_leaves);
  void CollectSubtrees(int node, Range leaves, std::vector<Subtree>* subtrees) const;
  void CollectSteps(int node, int first_leaf, std::vector<JoinStep>* steps) const;
  void CheckIsOurs(const Subtree& subtree) const;

  std::array<Node, 2 * kMaxLeaves - 1> nodes_;  // preorder; the root is 0
  int num_nodes_ = 0;
};

}  // namespace shoal::parallel
