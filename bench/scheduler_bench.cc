// What one step costs the router: GroupControl plans it, takes the ranks' answers and commits it,
// with N sequences that decode beside a prompt that is computed in chunks. No model, no socket, no
// thread.
//
//   scheduler_bench

#include <benchmark/benchmark.h>
#include <glog/logging.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "base/state_hash.h"
#include "router/control/group_control.h"

namespace shoal::router {
namespace {

constexpr uint32_t kPromptTokens = 300;

// A group of one rank, or of two stages, that answers at once.
class Harness {
 public:
  Harness(uint32_t num_sequences, uint32_t num_stages) : control_(Options(num_stages)) {
    control_.Start(now_);
    RankInfo info;
    info.version = "1";
    info.num_blocks = 1 << 16;
    info.block_size = 16;
    info.max_batch_tokens = 1024;
    info.max_batch_seqs = num_sequences + 1;
    info.max_seq_len = 1 << 20;
    for (uint32_t rank = 0; rank < num_stages; ++rank) Tell(RankAnswered{rank, info});
    const uint64_t epoch = control_.group().epoch();
    for (uint32_t rank = 0; rank < num_stages; ++rank) Tell(RankJoined{rank, epoch});
    for (uint32_t rank = 0; rank < num_stages; ++rank) Tell(StreamOpened{rank, epoch});
    for (uint32_t i = 0; i < num_sequences; ++i) Submit();
    for (uint32_t i = 0; i < 2 * num_sequences; ++i) Step();  // until all decode
  }

  // Plans all that can be planned, answers the oldest plan.
  void Step() {
    while (control_.Plan(now_)) Take();
    CHECK(!plans_.empty());
    const StepPlan plan = std::move(plans_.front());
    plans_.erase(plans_.begin());
    now_ += absl::Milliseconds(5);
    StepReplied reply{.rank = 0,
                      .epoch = control_.group().epoch(),
                      .step = plan.step,
                      .state_hash = plan.state_hash,
                      .token_hash = base::kTokenHashSeed,
                      .outputs = {},
                      .duration = absl::Milliseconds(4)};
    for (const StepRow& row : plan.rows) {
      RowOutput& output = reply.outputs.emplace_back();
      output.slot = row.slot;
      if (row.outputs != StepRow::Outputs::kNone) output.token_ids = {7};
      reply.token_hash = base::AddToTokenHash(reply.token_hash, output.slot, output.token_ids);
    }
    for (reply.rank = 0; reply.rank < control_.group().num_ranks(); ++reply.rank) Tell(reply);
    Take();
    num_rows_ += plan.rows.size();
  }

  uint64_t num_rows() const { return num_rows_; }

 private:
  static GroupControlOptions Options(uint32_t num_stages) {
    GroupControlOptions options;
    options.group.version = "1";
    options.group.pipeline_parallel_size = num_stages;
    options.inter_token_target = absl::Milliseconds(100);
    options.scheduler.max_plans_in_flight = 2;
    return options;
  }

  void Submit() {
    Request request;
    request.id = next_id_++;
    for (uint32_t i = 0; i < kPromptTokens; ++i) {
      request.token_ids.push_back(static_cast<uint32_t>(request.id * 31 + i));
    }
    request.max_tokens = 100 + request.id % 200;
    request.arrival = now_;
    CHECK(control_.Submit(now_, {std::move(request)}).ok());
  }

  void Tell(const GroupEvent& event) { control_.OnGroupEvent(now_, event); }

  void Take() {
    for (ControlAction& action : control_.TakeActions()) {
      if (auto* step = std::get_if<SendStep>(&action)) plans_.push_back(std::move(step->plan));
    }
    for (const Event& event : control_.TakeEvents()) {
      if (event.kind == Event::Kind::kFinished) Submit();
    }
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  GroupControl control_;
  std::vector<StepPlan> plans_;
  uint64_t next_id_ = 1;
  uint64_t num_rows_ = 0;
};

void BM_Step(benchmark::State& state) {
  Harness harness(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  const uint64_t before = harness.num_rows();
  for (auto _ : state) harness.Step();
  state.counters["rows"] = benchmark::Counter(static_cast<double>(harness.num_rows() - before),
                                              benchmark::Counter::kAvgIterations);
}
BENCHMARK(BM_Step)
    ->ArgNames({"sequences", "stages"})
    ->ArgsProduct({{1, 16, 64, 256}, {1, 2}})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace shoal::router

BENCHMARK_MAIN();
