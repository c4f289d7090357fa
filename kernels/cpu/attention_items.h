#pragma once

#include <cstdint>

#include "kernels/cpu/isa_table.h"
#include "kernels/ops.h"

namespace shoal::kernels::cpu {

// Cuts a step's attention into items (isa_table.h) and shares them out among threads by their cost,
// which is known beforehand: query vectors times positions. Every thread enumerates all items, in
// the same order, and takes those that fall into its share; so there is no queue and no memory.
class AttentionItems {
 public:
  AttentionItems(const AttentionArgs& args, int num_threads);

  // Calls work(item) for each item of `thread`.
  template <class Work>
  void ForThread(int thread, const Work& work) const {
    int64_t done = 0;
    ForEach([&](const AttentionItem& item, int64_t cost) {
      // The share of an item is that of its middle.
      const int64_t owner = (2 * done + cost) * num_threads_ / (2 * total_cost_);
      done += cost;
      if (owner == thread) {
        work(item);
      }
    });
  }

 private:
  template <class Visit>
  void ForEach(const Visit& visit) const;
  int32_t HeadGroupEnd(int32_t head) const;

  const AttentionArgs& args_;
  const int num_threads_;
  int32_t max_heads_ = kMaxAttentionVectors;  // of an item
  int64_t total_cost_ = 0;
};

template <class Visit>
void AttentionItems::ForEach(const Visit& visit) const {
  const StepLayout& layout = args_.layout;
  for (int32_t seq = 0; seq < layout.num_seqs; ++seq) {
    for (int32_t head = 0; head < args_.heads;) {
      const int32_t head_end = HeadGroupEnd(head);
      const int64_t rows_at_once = kMaxAttentionVectors / (head_end - head);
      for (int64_t row = layout.seq_row_begin[seq]; row < layout.seq_row_begin[seq + 1];) {
        const int64_t left = layout.seq_row_begin[seq + 1] - row;
        const int64_t row_end = row + (left < rows_at_once ? left : rows_at_once);
        const int64_t reach = layout.positions[row_end - 1] + 1;
        visit(AttentionItem{seq, row, row_end, head, head_end},
              (row_end - row) * (head_end - head) * (reach + kAttentionTile));
        row = row_end;
      }
      head = head_end;
    }
  }
}

}  // namespace shoal::kernels::cpu
