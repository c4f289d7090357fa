#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

namespace shoal::worker {

// The keys and values that one rank keeps: its layers, its KV heads.
struct KvShape {
  int64_t num_layers = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  kernels::KvType type = kernels::KvType::kF16;

  int64_t PageBytes() const;   // one block in one layer
  int64_t BlockBytes() const;  // one block in all layers
  int64_t BlocksThatFit(int64_t bytes) const { return bytes / BlockBytes(); }
};

// The KV cache of a rank: blocks of 16 tokens, in one allocation of the backend.
//
//   layer 0: | page 0 | page 1 | ... | page num_blocks - 1 |     block b is page b of every layer
//   layer 1: | page 0 | ...                                      (page: see kernels::KvPages)
//
// Which sequence holds which block is the router's business. Belongs to the rank's loop; one
// thread.
class KvStore {
 public:
  // RESOURCE_EXHAUSTED when the backend has no memory. REQUIRES: 1 <= num_blocks < 2^31. The
  // backend must outlive the store.
  static absl::StatusOr<std::unique_ptr<KvStore>> Create(const KvShape& shape, int64_t num_blocks,
                                                         kernels::Backend* backend);

  const KvShape& shape() const { return shape_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t size_bytes() const { return num_blocks_ * shape_.BlockBytes(); }

  kernels::KvPages layer(int64_t index) const;

  // Copies a block in all layers. CHECKs that both are blocks of this store.
  void CopyBlock(int64_t source, int64_t target);

 private:
  KvStore(const KvShape& shape, int64_t num_blocks, kernels::Backend* backend,
          std::unique_ptr<kernels::Buffer> memory);

  char* PageAt(int64_t layer, int64_t block) const;

  const KvShape shape_;
  const int64_t num_blocks_;
  kernels::Backend* const backend_;
  const std::unique_ptr<kernels::Buffer> memory_;
  std::vector<char> staging_;  // one page, on the host
};

}  // namespace shoal::worker
