#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "parallel/local_transport.h"
#include "tests/worker_engine/tiny_model.h"
#include "worker/engine/rank_model.h"

// Counts the allocations of this program, of all its threads. Not with a sanitizer, whose operators
// these would replace.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHOAL_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SHOAL_SANITIZED 1
#endif
#endif

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

#ifndef SHOAL_SANITIZED
namespace {
void* CountedAllocate(size_t bytes, size_t alignment) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}

void* OrAbort(void* memory) {
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}
}  // namespace

void* operator new(size_t bytes) {
  return OrAbort(CountedAllocate(bytes, alignof(std::max_align_t)));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return CountedAllocate(bytes, alignof(std::max_align_t));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return OrAbort(CountedAllocate(bytes, static_cast<size_t>(alignment)));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
#endif

namespace shoal::worker {
namespace {

std::unique_ptr<RankModel> LoadRank(const model::GgufFile& file, RankModel::Options options) {
  options.max_batch_tokens = 32;
  options.max_batch_seqs = 4;
  options.max_seq_len = 64;
  options.available_bytes = 0;
  auto backend = kernels::NewCpuBackend({.threads = 2, .cpus = {}, .isa = {}});
  EXPECT_TRUE(backend.ok()) << backend.status();
  auto model = RankModel::Load(file, options, *std::move(backend), nullptr);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// Two sequences of eight tokens, then one token for each.
class TwoSteps {
 public:
  void Run(RankModel& model, const Peers& peers) {
    StepInput input{.tokens = tokens_,
                    .layout = {.rows = 16,
                               .num_seqs = 2,
                               .seq_row_begin = prompt_begin_,
                               .positions = positions_.data(),
                               .block_tables = tables_},
                    .output_rows = outputs_};
    ok_ = model.executor().Run(input, model.kv_store(), peers).ok();
    input.tokens = absl::MakeConstSpan(tokens_).first(2);
    input.layout.rows = 2;
    input.layout.seq_row_begin = decode_begin_;
    input.layout.positions = decode_positions_;
    input.output_rows = decode_outputs_;
    ok_ = ok_ && model.executor().Run(input, model.kv_store(), peers).ok();
  }

  bool ok() const { return ok_; }

 private:
  const std::vector<int32_t> tokens_ = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  const std::vector<int32_t> positions_ = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<int32_t> outputs_ = {7, 15};
  const int32_t prompt_begin_[3] = {0, 8, 16};
  const int32_t decode_begin_[3] = {0, 1, 2};
  const int32_t decode_positions_[2] = {8, 8};
  const std::vector<int32_t> decode_outputs_ = {0, 1};
  const int32_t blocks_[2] = {0, 1};
  const int32_t* const tables_[2] = {blocks_, blocks_ + 1};
  bool ok_ = false;
};

class ExecutorAllocationTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef SHOAL_SANITIZED
    GTEST_SKIP() << "a sanitizer owns operator new";
#endif
  }
};

TEST_F(ExecutorAllocationTest, TheCounterCounts) {
  const int64_t before = num_allocations.load();
  const auto vector = std::make_unique<std::vector<int>>();
  EXPECT_EQ(num_allocations.load(), before + 1);
}

TEST_F(ExecutorAllocationTest, AStepAllocatesNothing) {
  for (const char* architecture : {"llama", "qwen3"}) {
    for (const kernels::DType type : {kernels::DType::kF32, kernels::DType::kQ4_1}) {
      const auto file = MakeTinyFile({.architecture = architecture, .matrix_type = type});
      const auto model = LoadRank(*file, {});
      TwoSteps steps;
      const int64_t before = num_allocations.load();
      steps.Run(*model, {});
      EXPECT_EQ(num_allocations.load(), before) << architecture;
      EXPECT_TRUE(steps.ok());
    }
  }
}

// Of two ranks: shards of a stage, or stages.
void ExpectNoAllocationWithPeers(bool has_stages) {
  const auto file = MakeTinyFile({});
  const auto transports =
      parallel::NewLocalTransports({.size = 2, .op_timeout = absl::Seconds(60)});
  ASSERT_TRUE(transports.ok()) << transports.status();
  std::unique_ptr<RankModel> models[2];
  for (int rank = 0; rank < 2; ++rank) {
    models[rank] = has_stages ? LoadRank(*file, {.pp = 2, .stage = rank})
                              : LoadRank(*file, {.tp = 2, .shard = rank});
  }
  TwoSteps steps[2];
  std::atomic<int> done{0};
  int64_t after = -1;  // written by the thread that ends last
  const auto run = [&](int rank) {
    // Counting begins when both threads exist.
    EXPECT_TRUE((*transports)[rank]->Barrier().ok());
    num_allocations.store(0);
    EXPECT_TRUE((*transports)[rank]->Barrier().ok());
    steps[rank].Run(*models[rank], has_stages ? Peers{.stages = (*transports)[rank].get()}
                                              : Peers{.shards = (*transports)[rank].get()});
    if (done.fetch_add(1) == 1) {
      after = num_allocations.load();
    }
  };
  std::thread peer(run, 1);
  run(0);
  peer.join();
  EXPECT_EQ(after, 0);
  EXPECT_TRUE(steps[0].ok() && steps[1].ok());
}

TEST_F(ExecutorAllocationTest, ACollectiveStepAllocatesNothing) {
  ExpectNoAllocationWithPeers(/*has_stages=*/false);
}

TEST_F(ExecutorAllocationTest, AStepOfAPipelineAllocatesNothing) {
  ExpectNoAllocationWithPeers(/*has_stages=*/true);
}

}  // namespace
}  // namespace shoal::worker
