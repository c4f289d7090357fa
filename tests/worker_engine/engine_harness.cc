#include "tests/worker_engine/engine_harness.h"

#include <glog/logging.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/time/time.h"

namespace shoal::worker {

namespace {

std::vector<std::unique_ptr<parallel::Transport>> NewTransports(int size) {
  auto transports = parallel::NewLocalTransports(
      {.size = size, .op_timeout = absl::Seconds(60), .allow_spin = false});
  CHECK(transports.ok()) << transports.status();
  return *std::move(transports);
}

}  // namespace

EngineHarness::EngineHarness(const model::GgufFile& file, RankModel::Options options,
                             const BackendFactory& new_backend) {
  options.available_bytes = 0;
  const int tp = options.tp;
  for (int rank = 0; rank < tp * options.pp; ++rank) {
    options.stage = rank / tp;
    options.shard = rank % tp;
    auto model = RankModel::Load(file, options, new_backend(), nullptr);
    CHECK(model.ok()) << model.status();
    ranks_.push_back(*std::move(model));
  }
  shards_.resize(ranks_.size());
  stages_.resize(ranks_.size());
  for (int stage = 0; stage < options.pp && tp > 1; ++stage) {
    auto transports = NewTransports(tp);
    for (int shard = 0; shard < tp; ++shard) {
      shards_[stage * tp + shard] = std::move(transports[shard]);
    }
  }
  for (int shard = 0; shard < tp && options.pp > 1; ++shard) {
    auto transports = NewTransports(options.pp);
    for (int stage = 0; stage < options.pp; ++stage) {
      stages_[stage * tp + shard] = std::move(transports[stage]);
    }
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
  for (size_t i = 0; i < ranks_.size(); ++i) {
    threads.emplace_back([&, i] {
      RankModel& rank = *ranks_[i];
      const absl::Status status = rank.executor().Run(
          input, rank.kv_store(), {.shards = shards_[i].get(), .stages = stages_[i].get()});
      CHECK(status.ok()) << status;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::vector<float> logits(tokens.size() * vocab());
  for (const std::unique_ptr<RankModel>& rank : ranks_) {
    const Executor& executor = rank->executor();
    if (!rank->is_last_stage()) {
      CHECK(executor.logits().empty());
      continue;
    }
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
