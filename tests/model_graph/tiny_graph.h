#pragma once

#include <glog/logging.h>

#include <memory>

#include "model/config.h"
#include "model/graph/builder.h"
#include "model/graph/passes.h"
#include "model/weights.h"
#include "tests/worker_engine/tiny_model.h"

namespace shoal::graph {

// A model with everything that passes need.
struct TinyGraph {
  explicit TinyGraph(const worker::TinyModel& tiny) : file(worker::MakeTinyFile(tiny)) {
    auto parsed = model::ParseConfig(*file);
    CHECK(parsed.ok()) << parsed.status();
    config = *std::move(parsed);
    auto found = model::Weights::Create(*file, config);
    CHECK(found.ok()) << found.status();
    weights = *std::move(found);
    graph = BuildGraph(config, weights);
  }

  void Shard(int tp, int shard) {
    const auto changed = ShardTensorParallel(config, tp, shard, &graph);
    CHECK(changed.ok() && *changed) << changed.status();
  }

  void RunAll(int tp, int shard, const PassOptions& options = {}) {
    RunAll(Placement{.tp = tp, .shard = shard}, options);
  }

  void RunAll(const Placement& placement, const PassOptions& options = {}) {
    const absl::Status status = RunPasses(config, weights, placement, 64, options, &graph);
    CHECK(status.ok()) << status;
  }

  std::unique_ptr<model::GgufFile> file;
  model::ModelConfig config;
  model::Weights weights;
  Graph graph;
};

}  // namespace shoal::graph
