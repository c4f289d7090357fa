#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "glog/logging.h"

namespace shoal::base {

// The finaliser of SplitMix64: a bijection in which every input bit reaches every output bit.
inline uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// An ordered combination: CombineHash(CombineHash(s, a), b) depends on the order of a and b.
inline uint64_t CombineHash(uint64_t seed, uint64_t value) {
  return MixBits(seed ^ MixBits(value));
}

// A fingerprint of what a rank believes about its sequences. The router and every rank each keep
// one and feed it the same plan; after a step the values are compared, so that a rank which lost
// a row or mixed up a block table is seen at once.
//
//   table(slot) = CombineHash over the slot's block ids in order, seeded with slot + 1
//   value       = sum over live slots of CombineHash(table(slot), position(slot))    (mod 2^64)
//
// The sum makes the value independent of the order of slots; every call costs O(1) and O(new
// blocks). `position` is the number of tokens whose KV the slot has. A plan is fed in the order
// ended slots, starts, rows (for a row: OnBlocks, then OnAdvance). Not thread-safe. REQUIRES of
// each call is CHECKed: a rank validates a plan before it feeds it.
class StateHash {
 public:
  // REQUIRES: `slot` is not live.
  void OnStart(uint32_t slot, uint64_t position, absl::Span<const uint32_t> block_ids) {
    if (slot >= slots_.size()) slots_.resize(slot + 1);
    CHECK(!slots_[slot].live) << "slot " << slot << " starts twice";
    slots_[slot] = {.live = true, .position = position, .table = uint64_t{slot} + 1};
    sum_ += Contribution(slots_[slot]);
    OnBlocks(slot, block_ids);
  }

  // REQUIRES: `slot` is live.
  void OnBlocks(uint32_t slot, absl::Span<const uint32_t> new_block_ids) {
    Slot& state = Live(slot);
    sum_ -= Contribution(state);
    for (uint32_t id : new_block_ids) state.table = CombineHash(state.table, id);
    sum_ += Contribution(state);
  }

  // REQUIRES: `slot` is live.
  void OnAdvance(uint32_t slot, uint64_t num_tokens) {
    Slot& state = Live(slot);
    sum_ -= Contribution(state);
    state.position += num_tokens;
    sum_ += Contribution(state);
  }

  // REQUIRES: `slot` is live.
  void OnEnd(uint32_t slot) {
    Slot& state = Live(slot);
    sum_ -= Contribution(state);
    state.live = false;
  }

  // Forgets every slot: a new epoch.
  void Clear() {
    slots_.clear();
    sum_ = 0;
  }

  bool is_live(uint32_t slot) const { return slot < slots_.size() && slots_[slot].live; }
  uint64_t value() const { return sum_; }

 private:
  struct Slot {
    bool live = false;
    uint64_t position = 0;
    uint64_t table = 0;
  };

  static uint64_t Contribution(const Slot& slot) { return CombineHash(slot.table, slot.position); }

  Slot& Live(uint32_t slot) {
    CHECK(is_live(slot)) << "slot " << slot << " is not live";
    return slots_[slot];
  }

  std::vector<Slot> slots_;
  uint64_t sum_ = 0;
};

// A fingerprint of the tokens of one step: every shard of the last stage samples, and they must
// agree. Start with kTokenHashSeed and add the outputs in the order of the plan's rows.
inline constexpr uint64_t kTokenHashSeed = 0x73686f616c;  // "shoal"

inline uint64_t AddToTokenHash(uint64_t hash, uint32_t slot, absl::Span<const uint32_t> token_ids) {
  hash = CombineHash(CombineHash(hash, slot), token_ids.size());
  for (uint32_t id : token_ids) hash = CombineHash(hash, id);
  return hash;
}

}  // namespace shoal::base
