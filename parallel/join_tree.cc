#include "parallel/join_tree.h"

#include <glog/logging.h>

#include <algorithm>

namespace shoal::parallel {
namespace {

constexpr int kMaxDepth = 3;

}  // namespace

JoinTree JoinTree::Create(int64_t num_units) {
  CHECK_GE(num_units, 1);
  JoinTree tree;
  int num_leaves = 0;
  tree.Build({0, num_units}, 0, &num_leaves);
  return tree;
}

int JoinTree::Build(Range units, int depth, int* num_leaves) {
  const int index = num_nodes_++;
  Node node;
  node.units = units;
  node.leaves.begin = *num_leaves;
  if (depth < kMaxDepth && units.size() > 1) {
    const int64_t middle = units.begin + (units.size() + 1) / 2;
    node.left = Build({units.begin, middle}, depth + 1, num_leaves);
    node.right = Build({middle, units.end}, depth + 1, num_leaves);
  } else {
    ++*num_leaves;
  }
  node.leaves.end = *num_leaves;
  nodes_[index] = node;
  return index;
}

Range JoinTree::leaf(int index) const { return UnitsOf({index, index + 1}); }

Range JoinTree::UnitsOf(Range leaves) const {
  CHECK(leaves.begin < leaves.end && root().leaves.Contains(leaves))
      << "leaves [" << leaves.begin << ", " << leaves.end << ") of " << num_leaves();
  Range units{num_units(), 0};
  for (int i = 0; i < num_nodes_; ++i) {
    if (nodes_[i].left < 0 && leaves.Contains(nodes_[i].leaves)) {
      units.begin = std::min(units.begin, nodes_[i].units.begin);
      units.end = std::max(units.end, nodes_[i].units.end);
    }
  }
  return units;
}

std::vector<Subtree> JoinTree::MaximalSubtrees(Range leaves) const {
  CHECK(root().leaves.Contains(leaves))
      << "leaves [" << leaves.begin << ", " << leaves.end << ") of " << num_leaves();
  std::vector<Subtree> subtrees;
  CollectSubtrees(0, leaves, &subtrees);
  return subtrees;
}

void JoinTree::CollectSubtrees(int node, Range leaves, std::vector<Subtree>* subtrees) const {
  const Node& here = nodes_[node];
  if (here.leaves.end <= leaves.begin || leaves.end <= here.leaves.begin) return;
  if (leaves.Contains(here.leaves)) {
    subtrees->push_back({node, here.leaves, here.units});
    return;
  }
  CollectSubtrees(here.left, leaves, subtrees);
  CollectSubtrees(here.right, leaves, subtrees);
}

std::vector<JoinStep> JoinTree::JoinSteps(const Subtree& subtree) const {
  CheckIsOurs(subtree);
  std::vector<JoinStep> steps;
  CollectSteps(subtree.node, static_cast<int>(subtree.leaves.begin), &steps);
  return steps;
}

void JoinTree::CollectSteps(int node, int first_leaf, std::vector<JoinStep>* steps) const {
  const Node& here = nodes_[node];
  if (here.left < 0) return;
  CollectSteps(here.left, first_leaf, steps);
  CollectSteps(here.right, first_leaf, steps);
  steps->push_back({static_cast<int>(nodes_[here.left].leaves.begin) - first_leaf,
                    static_cast<int>(nodes_[here.right].leaves.begin) - first_leaf});
}

void JoinTree::CheckIsOurs(const Subtree& subtree) const {
  CHECK(subtree.node >= 0 && subtree.node < num_nodes_ &&
        nodes_[subtree.node].leaves == subtree.leaves &&
        nodes_[subtree.node].units == subtree.units)
      << "node " << subtree.node << " is of another tree";
}

std::vector<JoinStep> JoinTree::JoinStepsBetween(absl::Span<const Subtree> parts) const {
  std::vector<int> part_of_leaf;
  for (size_t part = 0; part < parts.size(); ++part) {
    CheckIsOurs(parts[part]);
    CHECK_EQ(parts[part].leaves.begin, static_cast<int64_t>(part_of_leaf.size()))
        << "the subtrees leave a gap or overlap";
    part_of_leaf.resize(parts[part].leaves.end, static_cast<int>(part));
  }
  CHECK_EQ(static_cast<int>(part_of_leaf.size()), num_leaves()) << "the last leaves are missing";
  // A step names the first leaf of both its sides, and a side that is no single part begins with
  // one. Steps inside of a part have been done where it was computed.
  std::vector<JoinStep> steps;
  for (const JoinStep& step : JoinSteps(root())) {
    const JoinStep joined{part_of_leaf[step.dst], part_of_leaf[step.src]};
    if (joined.dst != joined.src) steps.push_back(joined);
  }
  return steps;
}

}  // namespace shoal::parallel
