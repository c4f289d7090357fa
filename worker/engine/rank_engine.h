#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/step_plan.h"
#include "base/thread/mutex.h"
#include "base/thread/span_recorder.h"
#include "parallel/transport.h"
#include "worker/engine/rank_model.h"
#include "worker/engine/sampler.h"
#include "worker/engine/sequence_table.h"

namespace shoal::worker {

// What a step gave. Hashes: base/state_hash.h.
struct StepOutcome {
  std::vector<base::RowOutput> outputs;  // one for each row of the plan, in order
  uint64_t state_hash = 0;
  uint64_t token_hash = 0;
  int64_t compute_ns = 0;     // the whole step less the two below
  int64_t wait_peers_ns = 0;  // in collectives of the forward pass
  int64_t sample_ns = 0;
};

// The transports of a rank in an epoch; see Peers.
struct OwnedPeers {
  std::unique_ptr<parallel::Transport> shards = nullptr;
  std::unique_ptr<parallel::Transport> stages = nullptr;
};

// A rank: a function of weights, KV bytes and plan. Runs plans one after the other; one thread
// drives it, Abort and position may be called from any thread.
class RankEngine {
 public:
  struct Position {
    uint64_t step = 0;
    std::string op;           // "" between steps
    uint64_t operations = 0;  // with peers, begun in this epoch
    int waiting_for = -1;     // rank of the group whose data is awaited; -1: not waiting
  };

  explicit RankEngine(std::unique_ptr<RankModel> model);
  ~RankEngine();

  const RankModel& model() const { return *model_; }
  const EngineLimits& limits() const { return limits_; }

  // Forgets all sequences and takes the epoch's transports. The old ones die.
  void StartEpoch(OwnedPeers peers);
  // Drops the transports, which wakes peers that wait for this rank.
  void EndEpoch();

  // INVALID_ARGUMENT when the plan does not fit (nothing was touched); else a transport's error,
  // after which the epoch is lost: both transports are aborted.
  absl::Status Step(const base::StepPlan& plan, StepOutcome* outcome);

  // Of spans: then come the program's ops, see span_names. kReceive and kReply are around a Step.
  enum SpanName : uint32_t { kReceive, kStep, kSample, kReply, kFirstOp };

  // Records the next steps; see base::SpanRecorder::Record. Any thread.
  absl::StatusOr<std::vector<base::Span>> Trace(uint32_t num_steps, absl::Duration timeout,
                                                const std::function<bool()>& is_abandoned);
  std::vector<std::string> span_names() const;  // [name]
  // Step's caller is its writer: it begins a step before Step and ends it thereafter.
  base::SpanRecorder* recorder() { return &recorder_; }

  // Runs one token through every kernel, so that the first step is not slower than the others.
  // Collective: every rank calls it.
  absl::Status WarmUp();

  void Abort(const absl::Status& why);
  Position position() const;
  uint64_t steps_done() const { return steps_done_.load(std::memory_order_relaxed); }

 private:
  absl::Status RunStep(const base::StepPlan& plan, StepOutcome* outcome);
  absl::Status RunBatch(const base::StepPlan& plan, const StepBatch& batch, const Peers& peers,
                        StepOutcome* outcome);
  // The requests of output rows [first, first + count), whose logits the executor holds.
  void MakeRequests(const base::StepPlan& plan, size_t first, size_t count);
  void CollectResults(StepOutcome* outcome);
  void FinishOutputs(StepOutcome* outcome);
  Peers peers() const;

  const std::unique_ptr<RankModel> model_;
  const EngineLimits limits_;
  SequenceTable sequences_;
  Sampler sampler_;
  std::vector<SampleRequest> requests_;  // scratch
  std::vector<uint32_t> request_uses_;   // scratch: index into output_uses of each request
  std::vector<SampleResult> results_;    // scratch
  base::SpanRecorder recorder_;
  std::atomic<uint64_t> step_{0};
  std::atomic<uint64_t> steps_done_{0};

  mutable base::Mutex mutex_;  // guards the pointers only: Abort may meet EndEpoch
  OwnedPeers peers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::worker
