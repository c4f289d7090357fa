#include "router/control/block_table.h"

#include <algorithm>

#include "glog/logging.h"

namespace shoal::router {

void BlockTable::ExtendHashes(absl::Span<const uint32_t> log, uint32_t num_blocks) {
  while (hashes_.size() < num_blocks) {
    const size_t begin = hashes_.size() * pool_->block_size();
    const uint64_t parent = hashes_.empty() ? pool_->ChainSeed(salt_) : hashes_.back();
    hashes_.push_back(pool_->ChainHash(parent, log.subspan(begin, pool_->block_size())));
  }
}

uint32_t BlockTable::Parent(uint32_t index) const {
  return index == 0 ? BlockPool::kNone : blocks_[index - 1].id();
}

PrefixMatch BlockTable::Find(absl::Span<const uint32_t> log, uint32_t max_tokens) {
  if (!pool_->has_prefix_cache()) return {};
  const uint32_t num_full = max_tokens / pool_->block_size();
  ExtendHashes(log, num_full);
  return pool_->Find(salt_, log, absl::MakeConstSpan(hashes_).subspan(0, num_full));
}

void BlockTable::Admit(absl::Span<const uint32_t> log, const PrefixMatch& match) {
  CHECK(blocks_.empty());
  for (uint32_t id : match.block_ids) blocks_.push_back(pool_->Share(id));
  num_published_ = num_expected_ = num_blocks();
  Grow(static_cast<uint32_t>(log.size()));
  if (!pool_->has_prefix_cache()) return;
  const uint32_t block_size = pool_->block_size();
  const uint32_t num_full = static_cast<uint32_t>(log.size()) / block_size;
  ExtendHashes(log, num_full);
  // Nothing can follow a block that is not in the index, so only the first one can be known.
  if (num_expected_ < num_full) {
    const PrefixMatch known =
        pool_->Find(salt_, log, absl::MakeConstSpan(hashes_).subspan(0, num_expected_ + 1));
    if (known.block_ids.size() > num_expected_ || known.pending.has_value()) return;
  }
  for (; num_expected_ < num_full; ++num_expected_) {
    const uint32_t i = num_expected_;
    pool_->Expect(blocks_[i].id(), Parent(i), hashes_[i], salt_,
                  log.subspan(i * block_size, block_size));
  }
}

std::vector<uint32_t> BlockTable::Grow(uint32_t num_tokens) {
  std::vector<uint32_t> added;
  while (blocks_.size() < pool_->num_blocks_for(num_tokens)) {
    blocks_.push_back(pool_->Allocate());
    added.push_back(blocks_.back().id());
  }
  return added;
}

void BlockTable::Commit(absl::Span<const uint32_t> log, uint32_t num_computed) {
  if (!pool_->has_prefix_cache()) return;
  const uint32_t block_size = pool_->block_size();
  const uint32_t num_full = num_computed / block_size;
  ExtendHashes(log, num_full);
  for (; num_published_ < num_full; ++num_published_) {
    const uint32_t i = num_published_;
    if (i < num_expected_) {
      pool_->Complete(blocks_[i].id());
    } else {
      pool_->Publish(blocks_[i].id(), Parent(i), hashes_[i], salt_,
                     log.subspan(i * block_size, block_size));
    }
  }
  num_expected_ = std::max(num_expected_, num_published_);
}

void BlockTable::Abandon(uint32_t num_tokens) {
  const uint32_t kept = std::max(num_published_, num_tokens / pool_->block_size());
  while (num_expected_ > kept) pool_->Abandon(blocks_[--num_expected_].id());
}

void BlockTable::Release() {
  while (!blocks_.empty()) blocks_.pop_back();
  num_published_ = num_expected_ = 0;
}

bool BlockTable::Owns(const PrefixMatch::Pending& pending) const {
  return std::any_of(blocks_.begin() + num_published_, blocks_.end(),
                     [&](const BlockRef& block) { return block.id() == pending.block_id; });
}

std::vector<uint32_t> BlockTable::block_ids() const {
  std::vector<uint32_t> ids;
  ids.reserve(blocks_.size());
  for (const BlockRef& block : blocks_) ids.push_back(block.id());
  return ids;
}

}  // namespace shoal::router
