#include "parallel/join_tree.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>

namespace shoal::parallel {
namespace {

constexpr int kMaxDepth = 3;
constexpr int64_t kBlock = 512;  // floats joined at a time: the scratch stays in the first cache

// dst may be left. Sixteen lanes at a time through a local array, so that the compiler needs no
// alias check to vectorise; the one addition of each element is the same on every ISA.
void Add(const float* left, const float* right, int64_t n, float* dst) {
  constexpr int64_t kLanes = 16;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    float sum[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) sum[lane] = left[i + lane] + right[i + lane];
    std::memcpy(dst + i, sum, sizeof(sum));
  }
  for (; i < n; ++i) dst[i] = left[i] + right[i];
}

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

// Evaluates the tree for one block of elements. The parts come in the order of the walk.
class JoinTree::Joiner {
 public:
  Joiner(const JoinTree& tree, absl::Span<const float* const> parts,
         absl::Span<const Subtree> subtrees)
      : tree_(tree), parts_(parts), subtrees_(subtrees) {}

  void JoinBlock(int64_t offset, int64_t count, float* out) {
    next_ = 0;
    offset_ = offset;
    count_ = count;
    const float* sum = Evaluate(0, out, 0);
    if (sum != out) std::memcpy(out, sum, count * sizeof(float));
  }

 private:
  // Returns where the node's sum is: the part itself, or `dst`. parts_[0] is read before `dst` is
  // first written, which is why the two may be the same.
  const float* Evaluate(int node, float* dst, int depth) {
    if (subtrees_[next_].node == node) return parts_[next_++] + offset_;
    const float* left = Evaluate(tree_.nodes_[node].left, dst, depth + 1);
    const float* right = Evaluate(tree_.nodes_[node].right, scratch_[depth], depth + 1);
    Add(left, right, count_, dst);
    return dst;
  }

  const JoinTree& tree_;
  const absl::Span<const float* const> parts_;
  const absl::Span<const Subtree> subtrees_;
  size_t next_ = 0;
  int64_t offset_ = 0;
  int64_t count_ = 0;
  float scratch_[kMaxDepth][kBlock];  // the right operand at each depth
};

void JoinTree::JoinParts(absl::Span<const float* const> parts, absl::Span<const Subtree> subtrees,
                         int64_t n, float* out) const {
  CHECK_EQ(parts.size(), subtrees.size());
  int64_t next_leaf = 0;
  for (const Subtree& subtree : subtrees) {
    CheckIsOurs(subtree);
    CHECK_EQ(subtree.leaves.begin, next_leaf) << "the subtrees leave a gap or overlap";
    next_leaf = subtree.leaves.end;
  }
  CHECK_EQ(next_leaf, num_leaves()) << "the last leaves are missing";
  Joiner joiner(*this, parts, subtrees);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    joiner.JoinBlock(begin, std::min(kBlock, n - begin), out + begin);
  }
}

}  // namespace shoal::parallel
