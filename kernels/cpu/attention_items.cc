#include "kernels/cpu/attention_items.h"

namespace shoal::kernels::cpu {

AttentionItems::AttentionItems(const AttentionArgs& args, int num_threads)
    : args_(args), num_threads_(num_threads) {
  // With few items the heads of a KV group go to different threads: sharing loads matters less than
  // using all threads.
  const auto count = [&] {
    int64_t items = 0;
    total_cost_ = 0;
    ForEach([&](const AttentionItem&, int64_t cost) {
      ++items;
      total_cost_ += cost;
    });
    return items;
  };
  if (count() < 4 * num_threads_ && num_threads_ > 1) {
    max_heads_ = 1;
    count();
  }
}

int32_t AttentionItems::HeadGroupEnd(int32_t head) const {
  int32_t end = head + 1;
  while (end < args_.heads && end - head < max_heads_ &&
         args_.kv_head_of[end] == args_.kv_head_of[head]) {
    ++end;
  }
  return end;
}

}  // namespace shoal::kernels::cpu
