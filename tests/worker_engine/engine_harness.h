#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "model/formats/gguf.h"
#include "parallel/local_transport.h"
#include "worker/engine/rank_model.h"

namespace shoal::worker {

using BackendFactory = std::function<std::unique_ptr<kernels::Backend>()>;

// All ranks of a model as threads of this process. CHECKs every status: a test that expects an
// error calls RankModel itself.
class EngineHarness {
 public:
  // Tokens that a sequence brings to a step; it continues where it stopped.
  struct Feed {
    int sequence = 0;
    std::vector<int32_t> tokens;
  };

  EngineHarness(const model::GgufFile& file, RankModel::Options options,
                const BackendFactory& new_backend);

  // One step. The logits of every row, [rows, vocab], put together from all shards.
  std::vector<float> Step(const std::vector<Feed>& feeds);

  // The logits of every token of a sequence, fed in chunks of this many (the last may be short).
  std::vector<float> FeedInChunks(int sequence, const std::vector<int32_t>& tokens, int chunk);

  RankModel& rank(int rank) { return *ranks_[rank]; }
  int64_t vocab() const { return ranks_[0]->config().vocab; }

 private:
  struct SequenceState {
    int position = 0;
    std::vector<int32_t> blocks;
  };

  int32_t TakeBlock();

  std::vector<std::unique_ptr<RankModel>> ranks_;             // [stage * tp + shard]
  std::vector<std::unique_ptr<parallel::Transport>> shards_;  // [rank]; null with one shard
  std::vector<std::unique_ptr<parallel::Transport>> stages_;  // [rank]; null with one stage
  std::map<int, SequenceState> sequences_;
  int32_t blocks_taken_ = 0;
};

}  // namespace shoal::worker
