#include "worker/engine/kv_store.h"

#include <glog/logging.h>

#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "kernels/quant/kv_type.h"

namespace shoal::worker {

int64_t KvShape::PageBytes() const { return kernels::KvPageBytes(type, kv_heads, head_dim); }

int64_t KvShape::BlockBytes() const { return num_layers * PageBytes(); }

absl::StatusOr<std::unique_ptr<KvStore>> KvStore::Create(const KvShape& shape, int64_t num_blocks,
                                                         kernels::Backend* backend) {
  CHECK(num_blocks >= 1 && num_blocks <= std::numeric_limits<int32_t>::max()) << num_blocks;
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<kernels::Buffer> memory,
      backend->Allocate(static_cast<size_t>(num_blocks * shape.BlockBytes()), "the KV cache"));
  return std::unique_ptr<KvStore>(new KvStore(shape, num_blocks, backend, std::move(memory)));
}

KvStore::KvStore(const KvShape& shape, int64_t num_blocks, kernels::Backend* backend,
                 std::unique_ptr<kernels::Buffer> memory)
    : shape_(shape),
      num_blocks_(num_blocks),
      backend_(backend),
      memory_(std::move(memory)),
      staging_(shape.PageBytes()) {}

char* KvStore::PageAt(int64_t layer, int64_t block) const {
  return static_cast<char*>(memory_->data()) + (layer * num_blocks_ + block) * shape_.PageBytes();
}

kernels::KvPages KvStore::layer(int64_t index) const {
  return {.base = PageAt(index, 0),
          .type = shape_.type,
          .num_pages = static_cast<int32_t>(num_blocks_),
          .kv_heads = static_cast<int32_t>(shape_.kv_heads),
          .head_dim = static_cast<int32_t>(shape_.head_dim)};
}

void KvStore::CopyBlock(int64_t source, int64_t target) {
  CHECK(source >= 0 && source < num_blocks_) << source;
  CHECK(target >= 0 && target < num_blocks_) << target;
  for (int64_t layer = 0; layer < shape_.num_layers; ++layer) {
    backend_->Download(staging_.data(), PageAt(layer, source), staging_.size());
    backend_->Upload(PageAt(layer, target), staging_.data(), staging_.size());
  }
}

}  // namespace shoal::worker
