#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/control/block_pool.h"

namespace shoal::router {

// The blocks of one sequence, in order, and how they stand in the pool's index. A plain part of a
// Sequence; the same thread as the pool. `log` is always the sequence's whole token log, which
// only grows.
//
//   blocks       | hit | hit | own | own | own | ...
//                |<- published ->|              computed and full, may be shared
//                |<-   expected    ->|          and those that are being computed (pending)
class BlockTable {
 public:
  BlockTable(BlockPool* pool, absl::string_view salt) : pool_(pool), salt_(salt) {}
  BlockTable(BlockTable&&) = default;
  ~BlockTable() { Release(); }

  // What the cache has of the log's first `max_tokens` tokens.
  PrefixMatch Find(absl::Span<const uint32_t> log, uint32_t max_tokens);

  // Takes the blocks of `match`, and new ones for the rest of the log; announces the full new ones
  // as pending until one is met that the index has already. REQUIRES: the table is empty, `match`
  // is fresh, enough blocks are available.
  void Admit(absl::Span<const uint32_t> log, const PrefixMatch& match);

  // Makes room for `num_tokens`; returns the new blocks. REQUIRES: enough blocks are available.
  std::vector<uint32_t> Grow(uint32_t num_tokens);

  // The KV of the first `num_computed` tokens of the log exists from now on.
  void Commit(absl::Span<const uint32_t> log, uint32_t num_computed);

  // The KV of what follows the first `num_tokens` of the log will not come: nobody waits for it.
  void Abandon(uint32_t num_tokens);

  // Gives the blocks back, tails first. Full computed ones stay in the cache.
  void Release();

  // Whether one of the blocks is the pending one.
  bool Owns(const PrefixMatch::Pending& pending) const;

  uint32_t num_blocks() const { return static_cast<uint32_t>(blocks_.size()); }
  std::vector<uint32_t> block_ids() const;

 private:
  void ExtendHashes(absl::Span<const uint32_t> log, uint32_t num_blocks);
  uint32_t Parent(uint32_t index) const;

  BlockPool* pool_;
  std::string salt_;
  std::vector<BlockRef> blocks_;
  std::vector<uint64_t> hashes_;  // chained, of the log's full blocks; outlives a release
  uint32_t num_published_ = 0;
  uint32_t num_expected_ = 0;
};

}  // namespace shoal::router
