#include "model/graph/lower.h"

#include <gtest/gtest.h>

#include "model/graph/assign_storage.h"
#include "tests/model_graph/tiny_graph.h"

namespace shoal::graph {
namespace {

ValueId InputOfGather(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (std::holds_alternative<GatherRowsOp>(node.op)) {
      return node.inputs[0];
    }
  }
  ADD_FAILURE() << "no GatherRows";
  return kNoValue;
}

TEST(AssignStorageTest, WhatOutputRowsAreTakenFromLivesToTheEnd) {
  TinyGraph tiny({});
  tiny.RunAll(1, 0);
  const StorageAssignment assignment = AssignStorage(tiny.graph);
  const int end = static_cast<int>(tiny.graph.nodes.size());
  const Place& hidden = assignment.places[InputOfGather(tiny.graph)];
  EXPECT_EQ(assignment.storages[hidden.storage].last_node, end);
  EXPECT_EQ(assignment.storages[assignment.places[tiny.graph.logits].storage].last_node, end);
}

TEST(AssignStorageTest, GateAndUpLieSideBySideWhetherMergedOrNot) {
  for (const bool merge : {false, true}) {
    TinyGraph tiny({});
    tiny.RunAll(2, 1, {.merge_products = merge, .fuse = merge});
    const StorageAssignment assignment = AssignStorage(tiny.graph);
    int found = 0;
    for (const Node& node : tiny.graph.nodes) {
      if (std::holds_alternative<SwiGluOp>(node.op)) {
        const Place& gate = assignment.places[node.inputs[0]];
        const Place& up = assignment.places[node.inputs[1]];
        EXPECT_EQ(gate.storage, up.storage);
        EXPECT_EQ(gate.column + tiny.graph.value(node.inputs[0]).width, up.column);
        ++found;
      }
    }
    EXPECT_EQ(found, 2);
  }
}

TEST(AssignStorageTest, AShardWritesItsPartsWhereTheyAreGathered) {
  TinyGraph tiny({.heads = 9, .kv_heads = 3});
  tiny.RunAll(2, 1);
  const StorageAssignment assignment = AssignStorage(tiny.graph);
  for (const Node& node : tiny.graph.nodes) {
    if (const auto* gather = std::get_if<AllGatherOp>(&node.op)) {
      const Place& mine = assignment.places[node.inputs[0]];
      EXPECT_EQ(mine.storage, assignment.places[node.outputs[0]].storage);
      EXPECT_EQ(mine.first_part, gather->parts_of[0]);
    }
  }
}

TEST(LowerTest, WorkspaceGrowsWithItsLimitsAlone) {
  TinyGraph tiny({});
  tiny.RunAll(1, 0);
  const auto bytes = [&](int64_t tokens, int64_t outputs) {
    return Lower(tiny.graph,
                 {.max_batch_tokens = tokens, .max_output_rows = outputs, .max_seq_len = 64})
        .workspace_bytes;
  };
  EXPECT_EQ(bytes(64, 4), bytes(64, 4));
  EXPECT_GE(bytes(128, 4), 2 * bytes(64, 4) - 64 * 100);
  EXPECT_GE(bytes(64, 64), 64 * 520 * 4);
}

TEST(LowerTest, SharingSavesMostOfTheMemory) {
  TinyGraph tiny({.layers = 8});
  tiny.RunAll(1, 0);
  const Program program =
      Lower(tiny.graph, {.max_batch_tokens = 64, .max_output_rows = 4, .max_seq_len = 64});
  EXPECT_LT(program.workspace_bytes * 8, program.unplanned_bytes);
}

TEST(LowerDeathTest, ChecksThatThePassesItNeedsHaveRun) {
  TinyGraph tiny({.matrix_type = kernels::DType::kQ8_0});
  EXPECT_DEATH(Lower(tiny.graph, {}), "ShardTensorParallel has not run");
  tiny.Shard(1, 0);
  EXPECT_DEATH(Lower(tiny.graph, {}), "has not run");
}

}  // namespace
}  // namespace shoal::graph
