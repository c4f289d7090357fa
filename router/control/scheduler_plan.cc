// How the Scheduler makes a plan; scheduler.cc has the requests.

#include <algorithm>

#include "glog/logging.h"
#include "router/control/scheduler.h"

namespace shoal::router {

std::optional<StepPlan> Scheduler::PlanStep(absl::Time now) {
  if (in_flight_.has_value() || !has_work()) return std::nullopt;
  Draft draft;
  draft.now = now;
  draft.budget = options_.max_batch_tokens;
  if (num_suspects_ > 0) {
    PlanTrial(&draft);
  } else {
    PreemptForPriority();
    PlanDecodes(&draft);
    PlanPrefills(&draft);
  }
  CHECK(!draft.rows.empty()) << "there is work and no step makes progress";
  return Seal(std::move(draft));
}

// The first waiting request does not wait for sequences of a lower priority.
void Scheduler::PreemptForPriority() {
  if (waiting_.empty() || running_.empty()) return;
  Sequence* first = *waiting_.begin();
  const auto is_victim = [&](const Sequence* sequence) {
    return sequence->key.rank > 0 && sequence->request.priority < first->request.priority;
  };
  if (!is_victim(running_.back())) return;
  PrefixMatch match = first->table.Find(first->log(), first->max_cached_tokens());
  if (match.pending.has_value()) return;
  uint32_t could_free = 0;  // an upper bound: victims may share blocks
  for (auto it = running_.rbegin(); it != running_.rend() && is_victim(*it); ++it) {
    could_free += (*it)->table.num_blocks();
  }
  const uint32_t wanted = pool_.num_blocks_for(first->log_size());
  if (wanted > match.block_ids.size() + pool_.num_available() + could_free) return;
  while (!running_.empty() && is_victim(running_.back()) && !IsAdmissible(*first, match)) {
    Preempt(running_.back());
    match = first->table.Find(first->log(), first->max_cached_tokens());
  }
}

void Scheduler::PlanDecodes(Draft* draft) {
  // MakeRoomToDecode takes sequences off the end of running_.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* sequence = running_[i];
    if (sequence->is_decoding && MakeRoomToDecode(sequence)) AddRow(sequence, draft);
  }
}

// Returns false if the sequence itself was the last in the order, and so the victim.
bool Scheduler::MakeRoomToDecode(Sequence* sequence) {
  if (pool_.num_blocks_for(sequence->num_computed + 1) <= sequence->table.num_blocks()) return true;
  while (pool_.num_available() == 0) {
    Sequence* victim = running_.back();
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
// waiting requests. The first waiting request that does not fit keeps all behind it waiting.
void Scheduler::PlanPrefills(Draft* draft) {
  std::vector<Sequence*> prefills;
  for (Sequence* sequence : running_) {
    if (!sequence->is_decoding) prefills.push_back(sequence);
  }
  const auto by_prefill_key = [](const Sequence* a, const Sequence* b) {
    return a->prefill_key() < b->prefill_key();
  };
  std::sort(prefills.begin(), prefills.end(), by_prefill_key);
  auto prefill = prefills.begin();
  auto next = waiting_.begin();
  bool admits = true;
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

void Scheduler::AddRow(Sequence* sequence, Draft* draft) {
  StepRow row;
  row.slot = sequence->slot;
  row.num_tokens = std::min(sequence->log_size() - sequence->num_computed, draft->budget);
  if (options_.max_prefill_chunk > 0) {
    row.num_tokens = std::min(row.num_tokens, options_.max_prefill_chunk);
  }
  CHECK_GT(row.num_tokens, 0u);
  if (sequence->is_decoding) row.source = StepRow::Source::kLastSample;
  const uint32_t end = sequence->num_computed + row.num_tokens;
  row.new_block_ids = sequence->table.Grow(end);

  PlannedRow planned{.sequence = sequence,
                     .num_tokens = row.num_tokens,
                     .samples = false,
                     .num_prompt_logprobs = 0};
  const bool reaches_end = end == sequence->log_size();
  const uint32_t last_logprob = std::min(end, sequence->max_prompt_logprobs());
  if (last_logprob > sequence->num_prompt_logprobs) {
    row.outputs = StepRow::Outputs::kAll;
    planned.num_prompt_logprobs = last_logprob - sequence->num_computed;
  } else if (reaches_end && sequence->request.max_tokens > 0) {
    row.outputs = StepRow::Outputs::kLast;
  }
  planned.samples = reaches_end && row.outputs != StepRow::Outputs::kNone;

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
  in_flight_ = {.step = plan.step, .rows = std::move(draft.rows)};
  return std::move(draft.plan);
}

}  // namespace shoal::router
