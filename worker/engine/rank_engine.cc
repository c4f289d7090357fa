#include "worker/engine/rank_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace shoal::worker {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

RankEngine::RankEngine(std::unique_ptr<RankModel> model)
    : model_(std::move(model)),
      limits_(model_->limits()),
      sequences_(limits_),
      sampler_(model_->vocab_shard_begins(), model_->shard(),
               static_cast<int>(limits_.max_batch_tokens)) {
  requests_.reserve(limits_.max_batch_tokens);
  request_uses_.reserve(limits_.max_batch_tokens);
  results_.reserve(limits_.max_batch_tokens);
  model_->executor().SetRecorder(&recorder_, kFirstOp);
}

RankEngine::~RankEngine() = default;

void RankEngine::StartEpoch(OwnedPeers peers) {
  sequences_.Clear();
  OwnedPeers old;
  base::MutexLock lock(&mutex_);
  old = std::exchange(peers_, std::move(peers));
}

void RankEngine::EndEpoch() { StartEpoch({}); }

Peers RankEngine::peers() const {
  base::MutexLock lock(&mutex_);
  return {.shards = peers_.shards.get(), .stages = peers_.stages.get()};
}

void RankEngine::Abort(const absl::Status& why) {
  base::MutexLock lock(&mutex_);
  if (peers_.shards != nullptr) peers_.shards->Abort(why);
  if (peers_.stages != nullptr) peers_.stages->Abort(why);
}

RankEngine::Position RankEngine::position() const {
  Position position;
  position.step = step_.load(std::memory_order_relaxed);
  position.op = model_->executor().current_op();
  const int tp = model_->tp();
  base::MutexLock lock(&mutex_);
  if (peers_.shards != nullptr) {
    const parallel::WaitInfo wait = peers_.shards->wait_info();
    position.operations += wait.operations;
    if (wait.waiting_for >= 0) position.waiting_for = model_->stage() * tp + wait.waiting_for;
  }
  if (peers_.stages != nullptr) {
    const parallel::WaitInfo wait = peers_.stages->wait_info();
    position.operations += wait.operations;
    if (wait.waiting_for >= 0) position.waiting_for = wait.waiting_for * tp + model_->shard();
  }
  return position;
}

absl::StatusOr<std::vector<base::Span>> RankEngine::Trace(
    uint32_t num_steps, absl::Duration timeout, const std::function<bool()>& is_abandoned) {
  // A prompt whose every token wants its logprob runs the last ops several times.
  const size_t spans_per_step = 2 * (kFirstOp + model_->executor().program().instructions.size());
  return recorder_.Record(num_steps, num_steps * spans_per_step, timeout, is_abandoned);
}

std::vector<std::string> RankEngine::span_names() const {
  std::vector<std::string> names = {"receive", "step", "sample", "reply"};  // as SpanName
  for (const graph::Instruction& instruction : model_->executor().program().instructions) {
    names.push_back(instruction.name);
  }
  return names;
}

absl::Status RankEngine::Step(const base::StepPlan& plan, StepOutcome* outcome) {
  if (!recorder_.is_recording()) return RunStep(plan, outcome);
  const int64_t begin_ns = base::UnixNanos();
  absl::Status status = RunStep(plan, outcome);
  recorder_.Add(kStep, begin_ns, base::UnixNanos());
  return status;
}

absl::Status RankEngine::RunStep(const base::StepPlan& plan, StepOutcome* outcome) {
  const int64_t start = NowNs();
  const Peers peers = this->peers();
  if ((peers.shards == nullptr && model_->tp() > 1) ||
      (peers.stages == nullptr && model_->pp() > 1)) {
    return absl::UnavailableError("the epoch has ended: the rank has no transport to its peers");
  }
  SHOAL_RETURN_IF_ERROR(sequences_.Validate(plan));
  step_.store(plan.step, std::memory_order_relaxed);
  for (const base::BlockMove& move : plan.block_moves) {
    model_->kv_store().CopyBlock(move.source_block, move.target_block);
  }
  const StepBatch batch = sequences_.Apply(plan);
  outcome->wait_peers_ns = 0;
  outcome->sample_ns = 0;
  outcome->outputs.assign(plan.rows.size(), base::RowOutput());
  for (size_t i = 0; i < plan.rows.size(); ++i) outcome->outputs[i].slot = plan.rows[i].slot;
  if (!batch.tokens.empty()) {
    const absl::Status status = RunBatch(plan, batch, peers, outcome);
    if (!status.ok()) {
      Abort(status);  // of two transports one has failed: the other's peers shall know
      return status;
    }
  }
  FinishOutputs(outcome);
  outcome->compute_ns = NowNs() - start - outcome->wait_peers_ns - outcome->sample_ns;
  outcome->state_hash = sequences_.state_hash();
  steps_done_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status RankEngine::RunBatch(const base::StepPlan& plan, const StepBatch& batch,
                                  const Peers& peers, StepOutcome* outcome) {
  Executor& executor = model_->executor();
  const size_t total = model_->is_last_stage() ? batch.output_rows.size() : 0;
  const size_t at_once = static_cast<size_t>(executor.program().limits.max_output_rows);
  SHOAL_RETURN_IF_ERROR(
      executor.Run({.tokens = batch.tokens,
                    .layout = batch.layout,
                    .output_rows = batch.output_rows.subspan(0, std::min(total, at_once))},
                   model_->kv_store(), peers));
  outcome->wait_peers_ns = executor.wait_ns();
  for (size_t first = 0; first < total; first += at_once) {
    const absl::Span<const int32_t> rows = batch.output_rows.subspan(first, at_once);
    if (first > 0) executor.ComputeLogits(rows);
    const int64_t sample_start = NowNs();
    MakeRequests(plan, first, rows.size());
    SHOAL_RETURN_IF_ERROR(sampler_.Run(requests_, peers.shards, &results_));
    CollectResults(outcome);
    outcome->sample_ns += NowNs() - sample_start;
    if (recorder_.is_recording()) {
      const int64_t end_ns = base::UnixNanos();
      recorder_.Add(kSample, end_ns - (NowNs() - sample_start), end_ns);
    }
  }
  return absl::OkStatus();
}

void RankEngine::MakeRequests(const base::StepPlan& plan, size_t first, size_t count) {
  requests_.clear();
  request_uses_.clear();
  const absl::Span<const OutputUse> uses = sequences_.output_uses();
  const absl::Span<const float> logits = model_->executor().logits();
  const size_t width = static_cast<size_t>(model_->executor().logits_width());
  for (size_t i = 0; i < count; ++i) {
    const OutputUse& use = uses[first + i];
    const SequenceTable::Sequence& sequence = sequences_.sequence(plan.rows[use.plan_row].slot);
    SampleRequest request;
    request.logits = logits.subspan(i * width, width);
    request.params = &sequence.sampling;
    request.log = absl::MakeConstSpan(sequence.log).first(use.position + 1);
    request.num_prompt_tokens = sequence.num_prompt_tokens;
    for (const bool score : {true, false}) {
      if (!(score ? use.score : use.sample)) continue;
      request.score = score;
      request.target = score ? sequence.log[use.position + 1] : 0;
      requests_.push_back(request);
      request_uses_.push_back(static_cast<uint32_t>(first + i));
    }
  }
}

void RankEngine::CollectResults(StepOutcome* outcome) {
  for (size_t i = 0; i < results_.size(); ++i) {
    SampleResult& result = results_[i];
    const OutputUse& use = sequences_.output_uses()[request_uses_[i]];
    base::RowOutput& output = outcome->outputs[use.plan_row];
    if (!result.finite) {
      output.error = absl::StrCat("the model gave non-finite logits at position ", use.position);
      output.token_ids.clear();
    }
    if (!output.error.empty()) continue;
    if (requests_[i].score) {
      output.prompt_logprobs.push_back(std::move(result.logprobs));
      continue;
    }
    output.token_ids.push_back(result.token_id);
    if (result.has_logprobs) output.logprobs.push_back(std::move(result.logprobs));
  }
}

void RankEngine::FinishOutputs(StepOutcome* outcome) {
  uint64_t hash = base::kTokenHashSeed;
  for (const base::RowOutput& output : outcome->outputs) {
    hash = base::AddToTokenHash(hash, output.slot, output.token_ids);
  }
  outcome->token_hash = hash;
  // In a pipeline the router says the token when it goes on: other stages do not know it.
  if (model_->pp() > 1) return;
  for (const OutputUse& use : sequences_.output_uses()) {
    if (!use.sample) continue;
    // A failed row has no token, but the next plan may be here already and continue it.
    const base::RowOutput& output = outcome->outputs[use.plan_row];
    sequences_.AppendSample(output.slot, output.token_ids.empty() ? 0 : output.token_ids.front());
  }
}

absl::Status RankEngine::WarmUp() {
  base::StepPlan plan;
  base::SequenceStart start;
  start.token_ids = {0};
  start.num_prompt_tokens = 1;
  start.block_ids = {0};
  start.sampling.temperature = 0;
  plan.starts.push_back(start);
  base::StepRow row;
  row.num_tokens = 1;
  row.outputs = base::StepRow::Outputs::kLast;
  plan.rows.push_back(row);
  StepOutcome outcome;
  SHOAL_RETURN_IF_ERROR(Step(plan, &outcome));
  sequences_.Clear();
  steps_done_.store(0, std::memory_order_relaxed);
  return absl::OkStatus();
}

}  // namespace shoal::worker
