// How the Scheduler makes a plan; scheduler.cc has the requests.

#include <algorithm>

#include "glog/logging.h"
#include "router/control/scheduler.h"

namespace shoal::router {

std::optional<StepPlan> Scheduler::PlanStep(absl::Time now, uint32_t max_prefill_tokens) {
  if (!has_work() || in_flight_.size() >= options_.max_plans_in_flight) return std::nullopt;
  if (!in_flight_.empty() && !MayPlanAhead()) return std::nullopt;
  Draft draft;
  draft.now = now;
  draft.budget = options_.max_batch_tokens;
  draft.prefill_budget = max_prefill_tokens;
  if (is_pipeline()) {
    draft.prefill_budget = std::min(
        draft.prefill_budget,
        std::max(kMinPipelinePrefill, options_.max_batch_tokens / (4 * options_.num_stages)));
  }
  if (num_suspects_ > 0) {
    PlanTrial(&draft);
  } else {
    if (in_flight_.empty() || is_pipeline()) PreemptForPriority(&draft);
    PlanDecodes(&draft);
    PlanPrefills(&draft);
  }
  if (!draft.rows.empty()) return Seal(std::move(draft));
  CHECK(!in_flight_.empty()) << "there is work and no step makes progress";
  return std::nullopt;
}

// Whether the plan after those that are with the ranks loses nothing by being made now. With no
// plan there, everything is possible, so waiting for that always ends in progress.
bool Scheduler::MayPlanAhead() {
  if (num_suspects_ > 0) return false;
  if (is_pipeline()) return true;
  uint32_t num_blocks = 0;
  uint32_t num_prefill = 0;
  bool somebody_ends = !ended_.empty();
  for (const Sequence* sequence : running_) {
    if (!sequence->has_more_to_plan()) {
      somebody_ends = true;
    } else if (sequence->is_decoding) {
      num_blocks += NeedsBlockToDecode(*sequence) ? 1 : 0;
    } else {
      num_prefill += NextChunk(*sequence, options_.max_batch_tokens);
    }
  }
  // A victim's blocks are free when no plan has it any more.
  if (num_blocks > pool_.num_available()) return false;
  if (num_prefill > kMaxPrefillAhead) return false;
  // Who waits and could start at the next commit is not kept waiting for one step more.
  return waiting_.empty() ||
         (!somebody_ends && !CouldAdmit() && !WantsToPreempt(*waiting_.begin()));
}

// Whether the first waiting request fits in now, or as soon as what runs has computed its prefix.
bool Scheduler::CouldAdmit() {
  if (free_slots_.empty()) return false;
  Sequence* first = *waiting_.begin();
  const PrefixMatch match = first->table.Find(first->log(), first->max_cached_tokens());
  return match.pending.has_value() || IsAdmissible(*first, match);
}

// A waiting request takes the place of one of a lower priority.
bool Scheduler::IsVictimOf(const Sequence& first, const Sequence& running) {
  return running.key.rank > 0 && running.request.priority < first.request.priority;
}

// Whether `first`, the first waiting request, could start if its victims were preempted.
bool Scheduler::WantsToPreempt(Sequence* first) {
  if (running_.empty() || !IsVictimOf(*first, *running_.back())) return false;
  const PrefixMatch match = first->table.Find(first->log(), first->max_cached_tokens());
  if (match.pending.has_value()) return false;
  uint32_t could_free = 0;  // an upper bound: victims may share blocks
  for (auto it = running_.rbegin(); it != running_.rend() && IsVictimOf(*first, **it); ++it) {
    could_free += (*it)->table.num_blocks();
  }
  const uint32_t wanted = pool_.num_blocks_for(first->log_size());
  return wanted <= match.block_ids.size() + pool_.num_available() + could_free;
}

void Scheduler::PreemptForPriority(Draft* draft) {
  if (waiting_.empty()) return;
  Sequence* first = *waiting_.begin();
  if (!WantsToPreempt(first)) return;
  const auto is_admissible = [&] {
    return IsAdmissible(*first, first->table.Find(first->log(), first->max_cached_tokens()));
  };
  while (!running_.empty() && IsVictimOf(*first, *running_.back()) && !is_admissible()) {
    if (running_.back()->num_in_flight > 0) {
      draft->draining = running_.back();
      return;
    }
    Preempt(running_.back());
  }
}

// Whether its next row, if it has one, could be in the plan that is being made.
bool Scheduler::CanDecode(const Sequence& sequence) const {
  return sequence.is_decoding && sequence.has_more_to_plan() &&
         (!is_pipeline() || sequence.num_in_flight == 0);
}

// In one plan. In a pipeline they share the plans that there may be.
uint32_t Scheduler::MaxDecodes() const {
  if (!is_pipeline()) return options_.max_batch_seqs;
  const auto num_decoding = static_cast<uint32_t>(
      std::count_if(running_.begin(), running_.end(),
                    [](const Sequence* sequence) { return sequence->is_decoding; }));
  const uint32_t num_plans = options_.max_plans_in_flight;
  return (num_decoding + num_plans - 1) / num_plans;
}

void Scheduler::PlanDecodes(Draft* draft) {
  // MakeRoomToDecode takes sequences off the end of running_.
  const uint32_t max_decodes = MaxDecodes();
  for (size_t i = 0; i < running_.size() && draft->rows.size() < max_decodes; ++i) {
    Sequence* sequence = running_[i];
    if (!CanDecode(*sequence) || sequence == draft->draining) continue;
    if (MakeRoomToDecode(sequence, draft)) AddRow(sequence, draft);
  }
}

bool Scheduler::NeedsBlockToDecode(const Sequence& sequence) const {
  return pool_.num_blocks_for(sequence.num_planned + 1) > sequence.table.num_blocks();
}

// Returns false if the sequence itself was the last in the order, and so the victim, or if the
// victim must leave its plans first.
bool Scheduler::MakeRoomToDecode(Sequence* sequence, Draft* draft) {
  if (!NeedsBlockToDecode(*sequence)) return true;
  while (pool_.num_available() == 0) {
    Sequence* victim = running_.back();
    if (victim->num_in_flight > 0) {
      draft->draining = victim;
      return false;
    }
    Preempt(victim);
    if (victim == sequence) return false;
  }
  return true;
}

void Scheduler::Preempt(Sequence* victim) {
  CHECK_GT(victim->key.rank, 0) << "request " << victim->request.id << " is protected";
  ++num_preemptions_;
  if (++victim->num_preemptions >= kMaxPreemptions) victim->key.rank = 0;
  Requeue(victim);
}

// Gives what is left of the budget, in the total order, to prompts that are being computed and to
// waiting requests. The first waiting request that does not fit keeps all behind it waiting. A plan
// made ahead for a single stage admits nobody.
void Scheduler::PlanPrefills(Draft* draft) {
  draft->budget = std::min(draft->budget, draft->prefill_budget);
  std::vector<Sequence*> prefills;
  for (Sequence* sequence : running_) {
    if (sequence->is_decoding || !sequence->has_more_to_plan()) continue;
    if (sequence != draft->draining) prefills.push_back(sequence);
  }
  const auto by_prefill_key = [](const Sequence* a, const Sequence* b) {
    return a->prefill_key() < b->prefill_key();
  };
  std::sort(prefills.begin(), prefills.end(), by_prefill_key);
  auto prefill = prefills.begin();
  auto next = waiting_.begin();
  bool admits = in_flight_.empty() || is_pipeline();
  while (draft->budget > 0) {
    PrefixMatch match;
    Sequence* candidate = admits ? NextCandidate(&next, &match) : nullptr;
    if (candidate == nullptr && prefill == prefills.end()) return;
    // Looking for a candidate may have put a prefill on which others wait further ahead.
    std::sort(prefill, prefills.end(), by_prefill_key);
    while (prefill != prefills.end() && draft->budget > 0 &&
           (candidate == nullptr || (*prefill)->prefill_key() < candidate->key)) {
      AddRow(*prefill++, draft);
    }
    if (candidate == nullptr || draft->budget == 0) continue;
    if (!IsAdmissible(*candidate, match)) {
      admits = false;
      continue;
    }
    ++next;
    Admit(candidate, match, draft);
    AddRow(candidate, draft);
  }
}

// The first waiting request from `next` on that no other sequence computes a prefix for.
Sequence* Scheduler::NextCandidate(std::set<Sequence*, ByKey>::iterator* next, PrefixMatch* match) {
  for (; *next != waiting_.end(); ++*next) {
    Sequence* sequence = **next;
    if (free_slots_.empty()) return nullptr;
    if (sequence->waits_for.has_value() && pool_.IsPending(*sequence->waits_for)) {
      InheritKey(*sequence);
      continue;
    }
    *match = sequence->table.Find(sequence->log(), sequence->max_cached_tokens());
    sequence->waits_for = match->pending;
    if (!match->pending.has_value()) return sequence;
    InheritKey(*sequence);
  }
  return nullptr;
}

// Whoever computes what `waiter` waits for does so with the waiter's place in the order.
void Scheduler::InheritKey(const Sequence& waiter) {
  for (Sequence* sequence : running_) {
    if (sequence->is_decoding || !(waiter.key < sequence->prefill_key())) continue;
    if (sequence->table.Owns(*waiter.waits_for)) sequence->inherited_key = waiter.key;
  }
}

bool Scheduler::IsAdmissible(const Sequence& sequence, const PrefixMatch& match) const {
  if (free_slots_.empty()) return false;
  // A tenth of the pool stays free so that the newcomer is not the next victim.
  const uint32_t reserve = running_.empty() ? 0 : pool_.num_blocks() / 10;
  const uint32_t hits = static_cast<uint32_t>(match.block_ids.size());
  const uint32_t needed = pool_.num_blocks_for(sequence.log_size()) - hits + match.num_unreferenced;
  if (needed + reserve > pool_.num_available()) return false;
  if (sequence.key.rank > 0) return true;
  uint64_t promised = pool_.num_blocks_for(sequence.max_kv_tokens());
  for (const Sequence* other : running_) {
    if (other->key.rank == 0) promised += pool_.num_blocks_for(other->max_kv_tokens());
  }
  return promised <= pool_.num_blocks();
}

void Scheduler::Admit(Sequence* sequence, const PrefixMatch& match, Draft* draft) {
  waiting_.erase(sequence);
  sequence->table.Admit(sequence->log(), match);
  sequence->slot = *free_slots_.begin();
  free_slots_.erase(free_slots_.begin());
  sequence->state = Sequence::State::kRunning;
  sequence->waits_for.reset();
  sequence->num_computed = static_cast<uint32_t>(match.block_ids.size()) * options_.block_size;
  sequence->num_planned = sequence->num_computed;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, ByKey()), sequence);
  if (sequence->admitted == absl::InfiniteFuture()) {
    sequence->admitted = draft->now;
    sequence->num_cached_tokens =
        std::min(sequence->num_computed, sequence->request.num_prompt_tokens);
  }
  num_prefix_queries_ += sequence->log_size();
  num_prefix_hits_ += sequence->num_computed;
  draft->plan.starts.push_back({.slot = sequence->slot,
                                .token_ids = sequence->log(),
                                .num_prompt_tokens = sequence->request.num_prompt_tokens,
                                .num_cached_tokens = sequence->num_computed,
                                .block_ids = sequence->table.block_ids(),
                                .sampling = sequence->request.sampling});
}

// The tokens of its next row.
uint32_t Scheduler::NextChunk(const Sequence& sequence, uint32_t budget) const {
  const uint32_t num_tokens = std::min(sequence.planned_log_size() - sequence.num_planned, budget);
  const uint32_t max_chunk = options_.max_prefill_chunk;
  return max_chunk > 0 ? std::min(num_tokens, max_chunk) : num_tokens;
}

void Scheduler::AddRow(Sequence* sequence, Draft* draft) {
  StepRow row;
  row.slot = sequence->slot;
  row.num_tokens = NextChunk(*sequence, draft->budget);
  CHECK_GT(row.num_tokens, 0u);
  if (sequence->is_decoding && is_pipeline()) {
    CHECK_EQ(sequence->num_planned + 1, sequence->log_size());
    row.source = StepRow::Source::kToken;
    row.token_id = sequence->log().back();
  } else if (sequence->is_decoding) {
    row.source = StepRow::Source::kLastSample;
  }
  const uint32_t begin = sequence->num_planned;
  const uint32_t end = begin + row.num_tokens;
  row.new_block_ids = sequence->table.Grow(end);

  PlannedRow planned{.sequence = sequence,
                     .num_tokens = row.num_tokens,
                     .samples = false,
                     .num_prompt_logprobs = 0};
  const bool reaches_end = end == sequence->planned_log_size();
  const uint32_t last_logprob = std::min(end, sequence->max_prompt_logprobs());
  if (last_logprob > std::max(begin, sequence->num_prompt_logprobs)) {
    row.outputs = StepRow::Outputs::kAll;
    planned.num_prompt_logprobs = last_logprob - begin;
  } else if (reaches_end && sequence->request.max_tokens > 0) {
    row.outputs = StepRow::Outputs::kLast;
  }
  planned.samples = reaches_end && row.outputs != StepRow::Outputs::kNone;
  draft->work.Add(begin, row.num_tokens);
  draft->work.num_outputs += row.outputs == StepRow::Outputs::kAll    ? row.num_tokens
                             : row.outputs == StepRow::Outputs::kLast ? 1
                                                                      : 0;

  sequence->num_planned = end;
  sequence->is_decoding = planned.samples;
  ++sequence->num_in_flight;
  draft->budget -= row.num_tokens;
  draft->plan.rows.push_back(std::move(row));
  draft->rows.push_back(planned);
}

// Only the first suspect runs.
void Scheduler::PlanTrial(Draft* draft) {
  Sequence* suspect = nullptr;
  const auto consider = [&suspect](Sequence* sequence) {
    if (sequence->is_suspect() && (suspect == nullptr || sequence->key < suspect->key)) {
      suspect = sequence;
    }
  };
  for (Sequence* sequence : running_) consider(sequence);
  if (suspect == nullptr) {
    for (Sequence* sequence : waiting_) consider(sequence);
    CHECK(suspect != nullptr);
    while (!running_.empty()) Requeue(running_.back());  // suspects that passed their trial
    const PrefixMatch match = suspect->table.Find(suspect->log(), suspect->max_cached_tokens());
    CHECK(IsAdmissible(*suspect, match)) << "request " << suspect->request.id;
    Admit(suspect, match, draft);
  }
  AddRow(suspect, draft);
}

StepPlan Scheduler::Seal(Draft draft) {
  StepPlan& plan = draft.plan;
  plan.step = next_step_++;
  plan.ended_slots = std::exchange(ended_slots_, {});
  for (uint32_t slot : plan.ended_slots) state_hash_.OnEnd(slot);
  for (const SequenceStart& start : plan.starts) {
    state_hash_.OnStart(start.slot, start.num_cached_tokens, start.block_ids);
  }
  for (const StepRow& row : plan.rows) {
    state_hash_.OnBlocks(row.slot, row.new_block_ids);
    state_hash_.OnAdvance(row.slot, row.num_tokens);
  }
  plan.state_hash = state_hash_.value();
  in_flight_.push_back({.step = plan.step, .rows = std::move(draft.rows), .work = draft.work});
  return std::move(draft.plan);
}

}  // namespace shoal::router
