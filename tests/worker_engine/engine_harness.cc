#include "tests/worker_engine/engine_harness.h"

#include <glog/logging.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/time/time.h"

namespace shoal::worker {

EngineHarness::EngineHarness(const model::GgufFile& file, RankModel::Options options,
                             const BackendFactory& new_backend) {
  options.available_bytes = 0;
  for (int shard = 0; shard < options.tp; ++shard) {
    options.shard = shard;
    auto rank = RankModel::Load(file, options, new_backend(), nullptr);
    CHECK(rank.ok()) << rank.status();
    ranks_.push_back(*std::move(rank));
  }
  if (options.tp > 1) {
    auto transports = parallel::NewLocalTransports(
        {.size = options.tp, .op_timeout = absl::Seconds(60), .allow_spin = false});
    CHECK(transports.ok()) << transports.status();
    transports_ = *std::move(transports);
  }
}

// Blocks in a scattered order, so that tables matter.
int32_t EngineHarness::TakeBlock() {
  const auto num_blocks = static_cast<int32_t>(ranks_[0]->kv_store().num_blocks());
  CHECK_LT(blocks_taken_, num_blocks);
  const int32_t taken = blocks_taken_++;
  return taken % 2 == 0 ? taken / 2 : num_blocks - 1 - taken / 2;
}

std::vector<float> EngineHarness::Step(const std::vector<Feed>& feeds) {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> output_rows;
  std::vector<int32_t> seq_row_begin = {0};
  std::vector<const int32_t*> tables;
  for (const Feed& feed : feeds) {
    SequenceState& sequence = sequences_[feed.sequence];
    for (const int32_t token : feed.tokens) {
      output_rows.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(token);
      positions.push_back(sequence.position++);
      if (static_cast<int>(sequence.blocks.size()) * kernels::kPageTokens < sequence.position) {
        sequence.blocks.push_back(TakeBlock());
      }
    }
    seq_row_begin.push_back(static_cast<int32_t>(tokens.size()));
  }
  for (const Feed& feed : feeds) {
    tables.push_back(sequences_[feed.sequence].blocks.data());
  }
  const StepInput input{.tokens = tokens,
                        .layout = {.rows = static_cast<int64_t>(tokens.size()),
                                   .num_seqs = static_cast<int32_t>(feeds.size()),
                                   .seq_row_begin = seq_row_begin.data(),
                                   .positions = positions.data(),
                                   .block_tables = tables.data()},
                        .output_rows = output_rows};
  std::vector<std::thread> threads;
  for (size_t shard = 0; shard < ranks_.size(); ++shard) {
    threads.emplace_back([&, shard] {
      RankModel& rank = *ranks_[shard];
      const absl::Status status = rank.executor().Run(
          input, rank.kv_store(), transports_.empty() ? nullptr : transports_[shard].get());
      CHECK(status.ok()) << status;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::vector<float> logits(tokens.size() * vocab());
  for (const std::unique_ptr<RankModel>& rank : ranks_) {
    const Executor& executor = rank->executor();
    for (size_t row = 0; row < tokens.size(); ++row) {
      std::copy_n(executor.logits().data() + row * executor.logits_width(), executor.logits_width(),
                  logits.data() + row * vocab() + executor.vocab_begin());
    }
  }
  return logits;
}

std::vector<float> EngineHarness::FeedInChunks(int sequence, const std::vector<int32_t>& tokens,
                                               int chunk) {
  std::vector<float> logits;
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const size_t end = std::min(tokens.size(), begin + chunk);
    const std::vector<float> part =
        Step({{sequence, std::vector<int32_t>(tokens.begin() + begin, tokens.begin() + end)}});
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

}  // namespace shoal::worker
