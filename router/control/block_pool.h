#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shoal::router {

class BlockPool;

// Holds one reference to a block of the pool; the reference ends with the handle. Movable. The
// pool outlives its handles.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  BlockRef& operator=(BlockRef&& other) noexcept;
  ~BlockRef() { Release(); }

  void Release();
  uint32_t id() const { return id_; }

 private:
  friend class BlockPool;
  BlockRef(BlockPool* pool, uint32_t id) : pool_(pool), id_(id) {}

  BlockPool* pool_ = nullptr;
  uint32_t id_ = 0;
};

struct BlockPoolOptions {
  uint32_t num_blocks = 0;
  uint32_t block_size = 16;  // tokens
  bool enable_prefix_cache = true;
  uint64_t hash_mask = ~uint64_t{0};  // for tests: fewer bits make collisions
};

// What the index knows of a sequence's beginning.
struct PrefixMatch {
  std::vector<uint32_t> block_ids;  // computed blocks, from the first token on
  uint32_t num_unreferenced = 0;    // of those: cached, so taking them uses up available ones
  // The block after them is being computed right now: worth waiting for.
  struct Pending {
    uint32_t block_id;
    uint64_t serial;
  };
  std::optional<Pending> pending;
};

// The KV blocks of one worker group: who holds which, and which prefix of tokens each has. Only
// bookkeeping: the bytes are with the ranks. Owned by the Scheduler; not thread-safe.
//
//                    Allocate                    Publish, Complete
//          free ----------------> held, private -------------------> held, in the index
//           ^  ^                     |    \ Expect                     |        ^
//           |  +---------------------+     v                   release |        | Share
//           |        release         |  held, pending                  v        |
//           |  +---------------------+-----+                    cached (unreferenced, LRU)
//           +--+                              eviction                 |
//           +----------------------------------------------------------+
//
// The index is a forest: a node is a full block, its parent the block before it. A node is found
// under the chained hash of {salt, tokens up to its end} and then compared token by token, parent
// by parent, so a collision costs time and nothing else. Two nodes may hold the same tokens under
// the same parent (a last prompt block is always computed again); the newest computed one is found.
//
// REQUIRES of every holder: who holds a node holds its ancestors too, and releases a node before
// its parent. So the least recently released cached block never has children: tails go first.
class BlockPool {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  explicit BlockPool(const BlockPoolOptions& options);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // The hash of a full block that follows `parent` (ChainSeed for a first block).
  uint64_t ChainSeed(absl::string_view salt) const;
  uint64_t ChainHash(uint64_t parent, absl::Span<const uint32_t> tokens) const;

  // Follows the blocks of `tokens` through the index, at most hashes.size() of them. `hashes` are
  // the chained hashes of its full blocks. Takes no reference. Cost: one comparison a token.
  PrefixMatch Find(absl::string_view salt, absl::Span<const uint32_t> tokens,
                   absl::Span<const uint64_t> hashes) const;

  // Takes a free block, or the one that the cache can best do without. REQUIRES: num_available().
  BlockRef Allocate();

  // One more reference to a block of the index. REQUIRES: it is computed.
  BlockRef Share(uint32_t block_id);

  // Enters a private block as pending under `parent` (kNone for a first block): its holder is
  // about to compute these tokens. `salt` is compared for first blocks. Without a prefix cache
  // this and Publish do nothing.
  void Expect(uint32_t block_id, uint32_t parent, uint64_t hash, absl::string_view salt,
              absl::Span<const uint32_t> tokens);
  // A pending block is computed: it may be shared from now on.
  void Complete(uint32_t block_id);
  // A pending block will not be computed. REQUIRES: no block is under it.
  void Abandon(uint32_t block_id);
  // Expect and Complete at once, for a block that turned out full.
  void Publish(uint32_t block_id, uint32_t parent, uint64_t hash, absl::string_view salt,
               absl::Span<const uint32_t> tokens);

  // Whether the block still is what PrefixMatch::pending named.
  bool IsPending(const PrefixMatch::Pending& pending) const;

  // Empties the cache, and the index with it. REQUIRES: nothing is held.
  void Clear();

  uint32_t num_blocks() const { return options_.num_blocks; }
  uint32_t block_size() const { return options_.block_size; }
  bool has_prefix_cache() const { return options_.enable_prefix_cache; }
  uint32_t num_free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t num_held() const { return num_held_; }
  uint32_t num_cached() const { return num_cached_; }
  uint32_t num_available() const { return num_free() + num_cached_; }
  uint32_t num_blocks_for(uint32_t num_tokens) const {
    return num_tokens / block_size() + (num_tokens % block_size() != 0);
  }

  // CHECKs all that must hold at every moment; cost: a walk over all blocks.
  void CheckInvariants() const;

 private:
  friend class BlockRef;

  enum class State { kPrivate, kPending, kComputed };  // the last two are nodes of the index

  struct Block {
    uint32_t num_references = 0;
    State state = State::kPrivate;
    uint64_t serial = 0;  // of the allocation: tells two lives of a block apart
    // As a node:
    uint64_t hash = 0;
    uint32_t parent = kNone;
    uint32_t num_children = 0;
    uint32_t next_in_bucket = kNone;
    std::vector<uint32_t> tokens;
    std::string salt;  // of a first block
    // In the list of cached blocks:
    uint32_t older = kNone;
    uint32_t newer = kNone;
  };

  void Release(uint32_t block_id);
  void AppendToCached(uint32_t block_id);
  void RemoveFromCached(uint32_t block_id);
  void RemoveFromIndex(uint32_t block_id);
  bool IsNode(const Block& block, uint32_t parent, uint64_t hash, absl::string_view salt,
              absl::Span<const uint32_t> tokens) const;

  const BlockPoolOptions options_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> free_;                     // a stack
  absl::flat_hash_map<uint64_t, uint32_t> index_;  // hash -> newest node; never iterated
  uint32_t oldest_cached_ = kNone;
  uint32_t newest_cached_ = kNone;
  uint32_t num_cached_ = 0;
  uint32_t num_held_ = 0;
  uint64_t next_serial_ = 1;
};

}  // namespace shoal::router
