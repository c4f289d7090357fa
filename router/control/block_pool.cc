#include "router/control/block_pool.h"

#include <algorithm>
#include <functional>

#include "base/state_hash.h"
#include "glog/logging.h"

namespace shoal::router {

BlockRef& BlockRef::operator=(BlockRef&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::exchange(other.pool_, nullptr);
    id_ = other.id_;
  }
  return *this;
}

void BlockRef::Release() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->Release(id_);
}

BlockPool::BlockPool(const BlockPoolOptions& options)
    : options_(options), blocks_(options.num_blocks) {
  CHECK_GT(options.num_blocks, 0u);
  CHECK_GT(options.block_size, 0u);
  free_.reserve(options.num_blocks);
  for (uint32_t id = options.num_blocks; id > 0; --id) free_.push_back(id - 1);
}

BlockPool::~BlockPool() { CHECK_EQ(num_held_, 0u) << "a BlockRef outlives its pool"; }

uint64_t BlockPool::ChainSeed(absl::string_view salt) const {
  uint64_t hash = base::MixBits(salt.size());
  for (char c : salt) hash = base::CombineHash(hash, static_cast<unsigned char>(c));
  return hash & options_.hash_mask;
}

uint64_t BlockPool::ChainHash(uint64_t parent, absl::Span<const uint32_t> tokens) const {
  uint64_t hash = base::MixBits(parent);
  for (uint32_t token : tokens) hash = (hash ^ token) * 0x9e3779b97f4a7c15u + (hash >> 32);
  return base::MixBits(hash) & options_.hash_mask;
}

bool BlockPool::IsNode(const Block& block, uint32_t parent, uint64_t hash, absl::string_view salt,
                       absl::Span<const uint32_t> tokens) const {
  return block.hash == hash && block.parent == parent &&
         absl::MakeConstSpan(block.tokens) == tokens && (parent != kNone || block.salt == salt);
}

PrefixMatch BlockPool::Find(absl::string_view salt, absl::Span<const uint32_t> tokens,
                            absl::Span<const uint64_t> hashes) const {
  PrefixMatch match;
  uint32_t parent = kNone;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const absl::Span<const uint32_t> wanted = tokens.subspan(i * block_size(), block_size());
    const auto bucket = index_.find(hashes[i]);
    uint32_t found = kNone;
    uint32_t pending = kNone;
    for (uint32_t id = bucket == index_.end() ? kNone : bucket->second;
         id != kNone && found == kNone; id = blocks_[id].next_in_bucket) {
      if (!IsNode(blocks_[id], parent, hashes[i], salt, wanted)) continue;
      (blocks_[id].state == State::kComputed ? found : pending) = id;
    }
    if (found == kNone) {
      if (pending != kNone) match.pending = {{pending, blocks_[pending].serial}};
      break;
    }
    match.block_ids.push_back(found);
    if (blocks_[found].num_references == 0) ++match.num_unreferenced;
    parent = found;
  }
  return match;
}

BlockRef BlockPool::Allocate() {
  CHECK_GT(num_available(), 0u) << "every block is held";
  if (free_.empty()) {
    const uint32_t victim = oldest_cached_;
    RemoveFromCached(victim);
    RemoveFromIndex(victim);
    free_.push_back(victim);
  }
  const uint32_t id = free_.back();
  free_.pop_back();
  Block& block = blocks_[id];
  block.num_references = 1;
  block.serial = next_serial_++;
  ++num_held_;
  return BlockRef(this, id);
}

BlockRef BlockPool::Share(uint32_t block_id) {
  Block& block = blocks_[block_id];
  CHECK(block.state == State::kComputed) << "block " << block_id << " is not computed";
  if (block.num_references++ == 0) {
    RemoveFromCached(block_id);
    ++num_held_;
  }
  return BlockRef(this, block_id);
}

void BlockPool::Expect(uint32_t block_id, uint32_t parent, uint64_t hash, absl::string_view salt,
                       absl::Span<const uint32_t> tokens) {
  if (!has_prefix_cache()) return;
  Block& block = blocks_[block_id];
  CHECK(block.state == State::kPrivate && block.num_references == 1) << "block " << block_id;
  CHECK_EQ(tokens.size(), block_size());
  if (parent != kNone) {
    CHECK(blocks_[parent].state != State::kPrivate && blocks_[parent].num_references > 0);
    ++blocks_[parent].num_children;
  } else {
    block.salt = std::string(salt);
  }
  block.state = State::kPending;
  block.parent = parent;
  block.hash = hash;
  block.tokens.assign(tokens.begin(), tokens.end());
  const auto [bucket, inserted] = index_.try_emplace(hash, block_id);
  block.next_in_bucket = inserted ? kNone : std::exchange(bucket->second, block_id);
}

void BlockPool::Complete(uint32_t block_id) {
  if (!has_prefix_cache()) return;
  CHECK(blocks_[block_id].state == State::kPending) << "block " << block_id;
  blocks_[block_id].state = State::kComputed;
}

void BlockPool::Abandon(uint32_t block_id) {
  if (!has_prefix_cache()) return;
  CHECK(blocks_[block_id].state == State::kPending) << "block " << block_id;
  RemoveFromIndex(block_id);
}

void BlockPool::Publish(uint32_t block_id, uint32_t parent, uint64_t hash, absl::string_view salt,
                        absl::Span<const uint32_t> tokens) {
  Expect(block_id, parent, hash, salt, tokens);
  Complete(block_id);
}

bool BlockPool::IsPending(const PrefixMatch::Pending& pending) const {
  const Block& block = blocks_[pending.block_id];
  return block.state == State::kPending && block.serial == pending.serial;
}

void BlockPool::Release(uint32_t block_id) {
  Block& block = blocks_[block_id];
  CHECK_GT(block.num_references, 0u) << "block " << block_id << " is released twice";
  if (--block.num_references > 0) return;
  --num_held_;
  if (block.state == State::kComputed) {
    AppendToCached(block_id);
    return;
  }
  if (block.state == State::kPending) RemoveFromIndex(block_id);
  free_.push_back(block_id);
}

void BlockPool::RemoveFromIndex(uint32_t block_id) {
  Block& block = blocks_[block_id];
  CHECK_EQ(block.num_children, 0u) << "block " << block_id << " leaves the index before its tail";
  if (block.parent != kNone) --blocks_[block.parent].num_children;
  const auto bucket = index_.find(block.hash);
  CHECK(bucket != index_.end());
  uint32_t* link = &bucket->second;
  while (*link != block_id) link = &blocks_[*link].next_in_bucket;
  *link = block.next_in_bucket;
  if (bucket->second == kNone) index_.erase(bucket);
  block.state = State::kPrivate;
  block.parent = kNone;
  block.next_in_bucket = kNone;
  block.tokens.clear();
  block.salt.clear();
}

void BlockPool::AppendToCached(uint32_t block_id) {
  Block& block = blocks_[block_id];
  block.older = newest_cached_;
  block.newer = kNone;
  (newest_cached_ == kNone ? oldest_cached_ : blocks_[newest_cached_].newer) = block_id;
  newest_cached_ = block_id;
  ++num_cached_;
}

void BlockPool::RemoveFromCached(uint32_t block_id) {
  Block& block = blocks_[block_id];
  (block.older == kNone ? oldest_cached_ : blocks_[block.older].newer) = block.newer;
  (block.newer == kNone ? newest_cached_ : blocks_[block.newer].older) = block.older;
  block.older = block.newer = kNone;
  --num_cached_;
}

void BlockPool::Clear() {
  CHECK_EQ(num_held_, 0u) << "the cache is cleared while sequences hold blocks";
  while (oldest_cached_ != kNone) {
    const uint32_t id = oldest_cached_;
    RemoveFromCached(id);
    RemoveFromIndex(id);
    free_.push_back(id);
  }
  // From one state on, one future: the order of a used stack must not matter.
  std::sort(free_.begin(), free_.end(), std::greater<uint32_t>());
}

void BlockPool::CheckInvariants() const {
  std::vector<bool> is_free(num_blocks());
  for (uint32_t id : free_) {
    CHECK(!is_free[id]) << "block " << id << " is free twice";
    is_free[id] = true;
  }
  uint32_t held = 0;
  uint32_t cached = 0;
  uint32_t nodes = 0;
  std::vector<uint32_t> children(num_blocks());
  for (uint32_t id = 0; id < num_blocks(); ++id) {
    const Block& block = blocks_[id];
    const bool is_node = block.state != State::kPrivate;
    if (block.num_references > 0) ++held;
    if (block.num_references == 0 && !is_free[id]) {
      ++cached;
      CHECK(block.state == State::kComputed) << "block " << id << " is cached with no content";
    }
    CHECK(!is_free[id] || (block.num_references == 0 && !is_node)) << "block " << id;
    if (!is_node) continue;
    ++nodes;
    CHECK_EQ(block.tokens.size(), block_size());
    if (block.parent == kNone) continue;
    const Block& parent = blocks_[block.parent];
    CHECK(parent.state != State::kPrivate) << "block " << id << " outlives its parent";
    CHECK(parent.state == State::kComputed || block.state == State::kPending);
    CHECK(block.num_references == 0 || parent.num_references > 0) << "block " << id;
    ++children[block.parent];
  }
  for (uint32_t id = 0; id < num_blocks(); ++id) CHECK_EQ(children[id], blocks_[id].num_children);
  CHECK_EQ(held, num_held_);
  CHECK_EQ(cached, num_cached_);
  CHECK_EQ(num_free() + held + cached, num_blocks());
  CHECK_LE(index_.size(), nodes);

  std::vector<bool> seen(num_blocks());
  uint32_t listed = 0;
  for (uint32_t id = oldest_cached_; id != kNone; id = blocks_[id].newer, ++listed) {
    CHECK_LT(listed, num_blocks());
    CHECK_EQ(blocks_[id].num_references, 0u);
    CHECK(blocks_[id].parent == kNone || !seen[blocks_[id].parent]) << "a parent goes first";
    seen[id] = true;
  }
  CHECK_EQ(listed, num_cached_);
}

}  // namespace shoal::router
