#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace shoal::text {

// One step of byte-pair encoding: two neighbours that form a token.
struct Merge {
  uint32_t rank;  // the lowest goes first
  int32_t id;     // the token they form
};

// Merges neighbours until no pair forms a token: always the pair of lowest rank, the leftmost of
// equals. A heap and a linked list, so n symbols cost O(n log n) however uniform they are; no
// recursion. One merger serves many texts, one after the other; not thread-safe.
class BpeMerger {
 public:
  struct Symbol {
    int32_t id;     // token, or negative: a piece that is no token
    uint32_t size;  // bytes
  };

  // `find_merge(offset, left, right)` -> std::optional<Merge> for the neighbours `left` and
  // `right`, where `left` starts at byte `offset` of the text. `emit(offset, symbol)` is called for
  // what remains, from left to right.
  template <typename FindMerge, typename Emit>
  void Run(absl::Span<const Symbol> symbols, FindMerge find_merge, Emit emit) {
    Reset(symbols);
    for (uint32_t i = 0; i + 1 < nodes_.size(); ++i) Consider(i, find_merge);
    std::make_heap(heap_.begin(), heap_.end(), Later);
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), Later);
      const Candidate best = heap_.back();
      heap_.pop_back();
      if (!IsCurrent(best)) continue;
      Join(best);
      if (Consider(best.left, find_merge)) std::push_heap(heap_.begin(), heap_.end(), Later);
      const uint32_t prev = nodes_[best.left].prev;
      if (prev != kNone && Consider(prev, find_merge)) {
        std::push_heap(heap_.begin(), heap_.end(), Later);
      }
    }
    for (const Node& node : nodes_) {
      if (node.symbol.size > 0) emit(node.offset, node.symbol);
    }
  }

 private:
  static constexpr uint32_t kNone = ~0u;

  struct Node {
    Symbol symbol;  // size 0: swallowed by its left neighbour
    uint32_t offset;
    uint32_t prev, next;
  };

  struct Candidate {
    uint32_t rank;
    uint32_t left;  // node
    uint32_t size;  // of both together: tells whether one of them has changed since
    int32_t id;
  };

  static bool Later(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }

  void Reset(absl::Span<const Symbol> symbols) {
    heap_.clear();
    nodes_.resize(symbols.size());
    uint32_t offset = 0;
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i] = {symbols[i], offset, i == 0 ? kNone : i - 1,
                   i + 1 == nodes_.size() ? kNone : i + 1};
      offset += symbols[i].size;
    }
  }

  // Adds the pair of `left` and its right neighbour to heap_'s end, if it forms a token.
  template <typename FindMerge>
  bool Consider(uint32_t left, FindMerge& find_merge) {
    const Node& node = nodes_[left];
    if (node.next == kNone) return false;
    const Symbol& right = nodes_[node.next].symbol;
    const std::optional<Merge> merge = find_merge(node.offset, node.symbol, right);
    if (!merge.has_value()) return false;
    heap_.push_back({merge->rank, left, node.symbol.size + right.size, merge->id});
    return true;
  }

  // Symbols only grow, at their right end, so the same neighbours have the same total size.
  bool IsCurrent(const Candidate& candidate) const {
    const Node& left = nodes_[candidate.left];
    return left.symbol.size > 0 && left.next != kNone &&
           left.symbol.size + nodes_[left.next].symbol.size == candidate.size;
  }

  void Join(const Candidate& candidate) {
    Node& left = nodes_[candidate.left];
    Node& right = nodes_[left.next];
    left.symbol = {candidate.id, candidate.size};
    left.next = right.next;
    if (right.next != kNone) nodes_[right.next].prev = candidate.left;
    right.symbol.size = 0;
  }

  std::vector<Node> nodes_;
  std::vector<Candidate> heap_;
};

}  // namespace shoal::text
