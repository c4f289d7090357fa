#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/reference/reference_backend.h"
#include "model/graph/builder.h"
#include "model/graph/lower.h"
#include "model/graph/passes.h"
#include "tests/worker_engine/tiny_model.h"
#include "worker/engine/executor.h"

namespace shoal::worker {
namespace {

// The logits of a prompt on the reference backend, with these passes.
std::vector<float> LogitsWith(const TinyModel& tiny, const graph::PassOptions& passes,
                              size_t* num_instructions) {
  const auto file = MakeTinyFile(tiny);
  const auto config = model::ParseConfig(*file);
  const auto weights = model::Weights::Create(*file, *config);
  graph::Graph graph = graph::BuildGraph(*config, *weights);
  EXPECT_TRUE(graph::RunPasses(*config, *weights, {}, 64, passes, &graph).ok());
  graph::Program program =
      graph::Lower(graph, {.max_batch_tokens = 16, .max_output_rows = 16, .max_seq_len = 64});
  *num_instructions = program.instructions.size();
  const KvShape shape{.num_layers = program.num_layers,
                      .kv_heads = program.num_kv_heads,
                      .head_dim = program.head_dim};
  const auto backend = kernels::NewReferenceBackend();
  const auto executor = Executor::Create(*weights, std::move(program), backend.get(), {});
  EXPECT_TRUE(executor.ok()) << executor.status();
  const auto kv = KvStore::Create(shape, 4, backend.get());
  EXPECT_TRUE(kv.ok()) << kv.status();

  const std::vector<int32_t> tokens = {1, 2, 3, 500, 5, 6, 77, 8, 9, 10, 11, 12};
  const std::vector<int32_t> positions = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const int32_t seq_row_begin[] = {0, 12};
  const int32_t blocks[] = {2};
  const int32_t* tables[] = {blocks};
  const absl::Status status = (*executor)->Run({.tokens = tokens,
                                                .layout = {.rows = 12,
                                                           .num_seqs = 1,
                                                           .seq_row_begin = seq_row_begin,
                                                           .positions = positions.data(),
                                                           .block_tables = tables},
                                                .output_rows = positions},
                                               **kv, {});
  EXPECT_TRUE(status.ok()) << status;
  return {(*executor)->logits().begin(), (*executor)->logits().end()};
}

TEST(PassesEquivalenceTest, PassesSaveInstructionsAndDoNotChangeABit) {
  for (const TinyModel& tiny :
       {TinyModel{},
        TinyModel{.architecture = "qwen2",
        .matrix_type = kernels::DType::kQ4_0,
        .value_type = kernels::DType::kF16,
        .mixed_types = true,
        .qkv_bias = true},
        TinyModel{.architecture = "qwen3", .matrix_type = kernels::DType::kQ8_0}}) {
    size_t all_steps = 0;
    const std::vector<float> all = LogitsWith(tiny, {}, &all_steps);
    ASSERT_EQ(all.size(), 12u * tiny.vocab);
    for (const graph::PassOptions passes :
         {graph::PassOptions{.merge_products = false, .fuse = false},
          graph::PassOptions{.merge_products = true, .fuse = false},
          graph::PassOptions{.merge_products = false, .fuse = true}}) {
      size_t steps = 0;
      const std::vector<float> without = LogitsWith(tiny, passes, &steps);
      EXPECT_GT(steps, all_steps);
      EXPECT_EQ(std::memcmp(all.data(), without.data(), all.size() * sizeof(float)), 0)
          << tiny.architecture << " merge " << passes.merge_products << " fuse " << passes.fuse;
    }
  }
}

}  // namespace
}  // namespace shoal::worker
