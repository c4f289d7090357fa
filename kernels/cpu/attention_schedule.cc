#include "kernels/cpu/attention_schedule.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace shoal::kernels::cpu {
namespace {

constexpr int64_t kPiecesPerThread = 16;

// Records of 16,384 positions of 32 heads of 64 take 1.3 MB. What does not fit is not cut.
constexpr int64_t kRecordBytesPerThread = int64_t{4} << 20;

// Reading a position's K and V costs about as much as this many vectors' share of the arithmetic.
constexpr int64_t kReadCost = 8;

// Starting an item, in positions.
constexpr int64_t kItemCost = 32;

int64_t Segments(int64_t positions) {
  return (positions + kAttentionSegment - 1) / kAttentionSegment;
}

}  // namespace

absl::Status AttentionWorkspace::Allocate(int num_threads) {
  if (num_threads == 1) {
    return absl::OkStatus();  // one thread cuts nothing
  }
  SHOAL_ASSIGN_OR_RETURN(
      records_, HugeMemory::Allocate(kRecordBytesPerThread * num_threads, "attention's partials"));
  max_cut_items_ = kPiecesPerThread * num_threads;
  unfinished_ = std::make_unique<std::atomic<int64_t>[]>(max_cut_items_);
  return absl::OkStatus();
}

AttentionSchedule::AttentionSchedule(const AttentionArgs& args, int num_threads,
                                     AttentionWorkspace* workspace)
    : args_(args), workspace_(*workspace) {
  int64_t total = 0;
  ForEachItem([&](const AttentionItem& item, int64_t cost) {
    total += cost;
    work_ += cost * args_.pages.head_dim;
  });
  piece_cost_ = std::max<int64_t>(1, total / (kPiecesPerThread * num_threads));
  // KV heads go to items of their own for the sake of balance; query heads that share a KV head
  // part only where threads would have nothing to do.
  const int64_t pieces_for_balance = num_threads == 1 ? 1 : kPiecesPerThread / 2 * num_threads;
  while (max_heads_ > 1 && (NumPieces() < num_threads ||
                            (NumPieces() < pieces_for_balance && max_heads_ > LargestGroup()))) {
    max_heads_ /= 2;
  }
  ForEachCut([&](const AttentionItem&, const Cut& cut) {
    if (cut.pieces > 1) {
      workspace_.unfinished_[cut.index].store(cut.pieces, std::memory_order_relaxed);
    }
  });
}

int32_t AttentionSchedule::GroupEnd(int32_t head) const {
  int32_t end = head + 1;
  while (end < args_.heads && args_.kv_head_of[end] == args_.kv_head_of[head]) {
    ++end;
  }
  return end;
}

int32_t AttentionSchedule::LargestGroup() const {
  int32_t largest = 0;
  for (int32_t head = 0; head < args_.heads; head = GroupEnd(head)) {
    largest = std::max(largest, GroupEnd(head) - head);
  }
  return largest;
}

AttentionSchedule::ItemHeads AttentionSchedule::HeadsFrom(int32_t head, bool one_row) const {
  ItemHeads item = {std::min(GroupEnd(head), head + max_heads_), 1};
  while (one_row && item.end < args_.heads && GroupEnd(item.end) - head <= max_heads_) {
    item.end = GroupEnd(item.end);
    ++item.kv_heads;
  }
  return item;
}

template <class Visit>
void AttentionSchedule::ForEachItem(const Visit& visit) const {
  const StepLayout& layout = args_.layout;
  for (int32_t seq = 0; seq < layout.num_seqs; ++seq) {
    const int64_t seq_end = layout.seq_row_begin[seq + 1];
    const bool one_row = seq_end - layout.seq_row_begin[seq] == 1;
    for (int32_t head = 0; head < args_.heads;) {
      const ItemHeads heads = HeadsFrom(head, one_row);
      const int64_t num_heads = heads.end - head;
      for (int64_t row = layout.seq_row_begin[seq]; row < seq_end;) {
        const int64_t row_end = std::min(row + kMaxAttentionVectors / num_heads, seq_end);
        const int64_t reach = layout.positions[row_end - 1] + 1;
        const AttentionItem item = {.seq = seq,
                                    .row_begin = row,
                                    .row_end = row_end,
                                    .head_begin = head,
                                    .head_end = heads.end,
                                    .segment_begin = 0,
                                    .segment_end = Segments(reach),
                                    .records = nullptr};
        visit(item,
              ((row_end - row) * num_heads + heads.kv_heads * kReadCost) * (reach + kItemCost));
        row = row_end;
      }
      head = heads.end;
    }
  }
}

template <class Visit>
void AttentionSchedule::ForEachCut(const Visit& visit) const {
  const int64_t padded_dim = (args_.pages.head_dim + 15) / 16 * 16;
  const int64_t record = padded_dim + kAttentionRecordExtra;
  auto* next = static_cast<float*>(workspace_.records_.data());
  int64_t left = static_cast<int64_t>(workspace_.records_.size_bytes() / sizeof(float));
  int64_t cut_items = 0;
  ForEachItem([&](const AttentionItem& item, int64_t cost) {
    Cut cut;
    const int64_t records = item.segment_end * (item.row_end - item.row_begin) *
                            (item.head_end - item.head_begin) * record;
    if (cost >= 2 * piece_cost_ && item.segment_end > 1 && records <= left &&
        cut_items < workspace_.max_cut_items_) {
      cut = {.pieces = std::min(cost / piece_cost_, item.segment_end),
             .index = cut_items++,
             .records = next};
      next += records;
      left -= records;
    }
    visit(item, cut);
  });
}

int64_t AttentionSchedule::NumPieces() const {
  int64_t pieces = 0;
  ForEachCut([&](const AttentionItem&, const Cut& cut) { pieces += cut.pieces; });
  return pieces;
}

void AttentionSchedule::Run(const IsaTable& table, Scratch scratch) {
  int64_t drawn = next_.fetch_add(1, std::memory_order_relaxed);
  int64_t number = 0;
  ForEachCut([&](const AttentionItem& item, const Cut& cut) {
    for (; drawn < number + cut.pieces; drawn = next_.fetch_add(1, std::memory_order_relaxed)) {
      RunPiece(table, item, cut, drawn - number, scratch);
    }
    number += cut.pieces;
  });
}

void AttentionSchedule::RunPiece(const IsaTable& table, AttentionItem item, const Cut& cut,
                                 int64_t piece, Scratch scratch) {
  if (cut.pieces == 1) {
    table.attention(args_, item, scratch);
    return;
  }
  const AttentionItem whole = item;
  item.records = cut.records;
  item.segment_begin = whole.segment_end * piece / cut.pieces;
  item.segment_end = whole.segment_end * (piece + 1) / cut.pieces;
  table.attention(args_, item, scratch);
  if (workspace_.unfinished_[cut.index].fetch_sub(1, std::memory_order_acq_rel) == 1) {
    item.segment_begin = 0;
    item.segment_end = whole.segment_end;
    table.join_attention(args_, item, scratch);
  }
}

}  // namespace shoal::kernels::cpu
