#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "kernels/cpu/huge_memory.h"
#include "kernels/cpu/isa_table.h"
#include "kernels/ops.h"

namespace shoal::kernels::cpu {

// Memory for the partial results of long items, of a backend; reused by every step.
class AttentionWorkspace {
 public:
  // RESOURCE_EXHAUSTED when there is no memory.
  absl::Status Allocate(int num_threads);

 private:
  friend class AttentionSchedule;

  HugeMemory records_;
  std::unique_ptr<std::atomic<int64_t>[]> unfinished_;  // pieces of each cut item
  int64_t max_cut_items_ = 0;
};

// One step's attention, cut into pieces that threads take one after another until none is left.
//
// A piece is an item (isa_table.h) or, where an item costs much more than a thread's fair share
// divided by kPiecesPerThread, some of its segments: their partial results go to the workspace, and
// whoever finishes the item's last piece joins them, always in the order of positions. So neither
// the number of threads nor who takes what changes a bit.
//
// Every thread enumerates all pieces in the same order and takes those whose number it drew, so
// there is no queue. Lives for one op; `args` and `workspace` must outlive it; nothing is
// allocated.
class AttentionSchedule {
 public:
  AttentionSchedule(const AttentionArgs& args, int num_threads, AttentionWorkspace* workspace);

  // Operations, roughly: query vectors times positions times head_dim.
  int64_t work() const { return work_; }

  // Takes pieces until none is left. Called once by each thread that takes part.
  void Run(const IsaTable& table, Scratch scratch);

 private:
  // An item's part in the enumeration.
  struct Cut {
    int64_t pieces = 1;
    int64_t index = 0;  // among the cut items, when pieces > 1
    float* records = nullptr;
  };

  // Query heads [from, end) of an item and the KV heads that they read.
  struct ItemHeads {
    int32_t end = 0;
    int32_t kv_heads = 0;
  };

  // Calls visit(item, cost) for every item.
  template <class Visit>
  void ForEachItem(const Visit& visit) const;
  // Calls visit(item, cut) for every item.
  template <class Visit>
  void ForEachCut(const Visit& visit) const;
  // The end of the query heads from `head` on that share its KV head, and the most that do so.
  int32_t GroupEnd(int32_t head) const;
  int32_t LargestGroup() const;
  ItemHeads HeadsFrom(int32_t head, bool one_row) const;
  int64_t NumPieces() const;
  void RunPiece(const IsaTable& table, AttentionItem item, const Cut& cut, int64_t piece,
                Scratch scratch);

  const AttentionArgs& args_;
  AttentionWorkspace& workspace_;
  int32_t max_heads_ = kMaxAttentionVectors;  // of an item
  int64_t piece_cost_ = 0;                    // aimed at
  int64_t work_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
};

}  // namespace shoal::kernels::cpu
