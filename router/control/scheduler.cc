#include "router/control/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace shoal::router {

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      pool_({.num_blocks = options.num_blocks,
             .block_size = options.block_size,
             .enable_prefix_cache = options.enable_prefix_cache,
             .hash_mask = options.hash_mask}) {
  CHECK_GT(options.max_batch_seqs, 0u);
  CHECK_GE(options.max_batch_tokens, options.max_batch_seqs);
  CHECK_GT(options.max_plans_in_flight, 0u);
  CHECK_GT(options.num_stages, 0u);
  CHECK_GT(options.aging_interval, absl::ZeroDuration());
  for (uint32_t slot = 0; slot < options.max_batch_seqs; ++slot) free_slots_.insert(slot);
}

Scheduler::~Scheduler() = default;

uint32_t Scheduler::MaxNewTokens(uint32_t num_prompt_tokens) const {
  // The last generated token has no KV.
  const uint64_t pool_tokens = uint64_t{options_.num_blocks} * options_.block_size + 1;
  const uint64_t limit = std::min<uint64_t>(options_.max_seq_len, pool_tokens);
  return limit > num_prompt_tokens ? static_cast<uint32_t>(limit - num_prompt_tokens) : 0;
}

absl::Status Scheduler::CheckRequest(absl::Time now, const Request& request) const {
  if (request.token_ids.empty()) {
    return absl::InvalidArgumentError("the prompt has no tokens; send at least one");
  }
  const uint64_t num_tokens = request.token_ids.size();
  const uint64_t num_prompt =
      request.num_prompt_tokens > 0 ? request.num_prompt_tokens : num_tokens;
  if (num_prompt > num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("num_prompt_tokens is ", num_prompt,
                                                   " but there are only ", num_tokens, " tokens"));
  }
  if (num_tokens > num_prompt && num_tokens - num_prompt >= request.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", request.max_tokens, " and ", num_tokens - num_prompt,
                     " tokens were generated already; raise max_tokens"));
  }
  const uint64_t longest = num_prompt + request.max_tokens;
  if (longest > options_.max_seq_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        num_prompt, " prompt tokens and max_tokens ", request.max_tokens, " make ", longest,
        ", more than max_seq_len ", options_.max_seq_len, "; shorten the prompt or max_tokens"));
  }
  const uint64_t pool_tokens = uint64_t{options_.num_blocks} * options_.block_size;
  if (num_prompt + std::max(request.max_tokens, 1u) - 1 > pool_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        num_prompt, " prompt tokens and max_tokens ", request.max_tokens, " need a KV cache of ",
        longest - 1, " tokens, it has ", pool_tokens, "; shorten the prompt or max_tokens"));
  }
  if (sequences_.contains(request.id)) {
    return absl::AlreadyExistsError(absl::StrCat("request ", request.id, " is still running"));
  }
  if (request.deadline <= now) {
    return absl::DeadlineExceededError("the deadline was past before the request was queued");
  }
  const uint64_t max_requests = uint64_t{options_.max_queued_requests} + options_.max_batch_seqs;
  if (sequences_.size() >= max_requests) {
    return absl::ResourceExhaustedError(
        absl::StrCat(sequences_.size(), " requests are running or queued, the limit is ",
                     max_requests, " (max_batch_seqs ", options_.max_batch_seqs,
                     " + max_queued_requests ", options_.max_queued_requests, "); retry later"));
  }
  return absl::OkStatus();
}

absl::Status Scheduler::Submit(absl::Time now, Request request) {
  SHOAL_RETURN_IF_ERROR(CheckRequest(now, request));
  if (!has_work()) {
    last_progress_ = now;
    is_stalled_ = false;
  }
  const uint64_t id = request.id;
  auto sequence = std::make_unique<Sequence>(std::move(request), &pool_);
  Request& accepted = sequence->request;
  if (accepted.num_prompt_tokens == 0) accepted.num_prompt_tokens = sequence->log_size();
  sequence->key = KeyOf(accepted, next_number_++);
  waiting_.insert(sequence.get());
  if (accepted.deadline != absl::InfiniteFuture()) {
    deadlines_.emplace(std::make_pair(accepted.deadline, sequence->key.number), sequence.get());
  }
  sequences_.emplace(id, std::move(sequence));
  return absl::OkStatus();
}

OrderKey Scheduler::KeyOf(const Request& request, uint64_t number) const {
  const absl::Duration since_epoch = request.arrival - absl::UnixEpoch();
  absl::Duration remainder;
  return {.rank = 1,
          .level = absl::IDivDuration(since_epoch, options_.aging_interval, &remainder) -
                   static_cast<int64_t>(request.priority),
          .deadline = request.deadline,
          .arrival = request.arrival,
          .number = number};
}

StepWork Scheduler::DecodeWork() const {
  StepWork work;
  for (const Sequence* sequence : running_) {
    if (!sequence->is_decoding || !sequence->has_more_to_plan()) continue;
    work.Add(sequence->num_planned, 1);
    ++work.num_outputs;
  }
  return work;
}

uint32_t Scheduler::PrefillPosition() const {
  for (const Sequence* sequence : running_) {
    if (!sequence->is_decoding) return sequence->num_planned;
  }
  return 0;
}

Backlog Scheduler::BacklogOf(const Request& request) {
  Backlog backlog;
  backlog.decodes = DecodeWork();
  backlog.num_free_slots = static_cast<uint32_t>(free_slots_.size());
  const auto num_uncached = [this](Sequence* sequence) {
    const PrefixMatch match = sequence->table.Find(sequence->log(), sequence->max_cached_tokens());
    return sequence->log_size() -
           static_cast<uint32_t>(match.block_ids.size()) * pool_.block_size();
  };
  for (const Sequence* sequence : running_) {
    if (!sequence->is_decoding) {
      backlog.num_tokens_ahead += sequence->log_size() - sequence->num_planned;
    }
    backlog.running.push_back(
        {.num_generated = sequence->num_generated(),
         .num_left = sequence->request.max_tokens - sequence->num_generated()});
  }
  const OrderKey key = KeyOf(request, next_number_);
  for (Sequence* sequence : waiting_) {
    if (key < sequence->key) break;
    ++backlog.num_waiting_ahead;
    backlog.num_tokens_ahead += num_uncached(sequence);
  }
  Sequence own(request, &pool_);
  if (own.request.num_prompt_tokens == 0) own.request.num_prompt_tokens = own.log_size();
  backlog.num_own_tokens = num_uncached(&own);
  return backlog;
}

Sequence* Scheduler::Find(uint64_t id) const {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

std::vector<Event> Scheduler::Cancel(absl::Time now, uint64_t id, absl::string_view reason) {
  std::vector<Event> events;
  if (Sequence* sequence = Find(id); sequence != nullptr) {
    EndWithEvent(now, sequence,
                 {.reason = FinishReason::kCancelled, .status = absl::CancelledError(reason)},
                 &events);
  }
  return events;
}

void Scheduler::Finish(uint64_t id) {
  if (Sequence* sequence = Find(id); sequence != nullptr) End(sequence);
}

std::vector<Event> Scheduler::FailAll(absl::Time now, const absl::Status& status) {
  std::vector<Event> events;
  const std::vector<Sequence*> running = running_;
  const std::vector<Sequence*> waiting(waiting_.begin(), waiting_.end());
  for (const auto* sequences : {&running, &waiting}) {
    for (Sequence* sequence : *sequences) {
      EndWithEvent(now, sequence, {.reason = FinishReason::kError, .status = status}, &events);
    }
  }
  return events;
}

absl::Time Scheduler::NextDeadline() const {
  absl::Time next = deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first.first;
  if (has_work() && !is_stalled_) next = std::min(next, last_progress_ + options_.stall_timeout);
  return next;
}

std::vector<Event> Scheduler::Expire(absl::Time now) {
  std::vector<Event> events;
  while (!deadlines_.empty() && deadlines_.begin()->first.first <= now) {
    Sequence* sequence = deadlines_.begin()->second;
    EndWithEvent(now, sequence,
                 {.reason = FinishReason::kDeadline,
                  .status = absl::DeadlineExceededError(
                      absl::StrCat("the deadline passed after ", sequence->num_generated(),
                                   " of at most ", sequence->request.max_tokens, " tokens"))},
                 &events);
  }
  if (has_work() && !is_stalled_ && now >= last_progress_ + options_.stall_timeout) {
    is_stalled_ = true;
    ++num_stalls_;
  }
  return events;
}

// An event of the sequence with its counts and durations so far.
Event Scheduler::MakeEvent(absl::Time now, Event::Kind kind, const Sequence& sequence) {
  const absl::Time arrival = sequence.request.arrival;
  Event event;
  event.kind = kind;
  event.request_id = sequence.request.id;
  event.outcome.num_prompt_tokens = sequence.request.num_prompt_tokens;
  event.outcome.num_generated_tokens = sequence.num_generated();
  event.outcome.num_cached_tokens = sequence.num_cached_tokens;
  event.outcome.num_preemptions = sequence.num_preemptions;
  event.outcome.admitted = sequence.admitted - arrival;
  event.outcome.first_token = sequence.first_token - arrival;
  event.outcome.finished = now - arrival;
  return event;
}

void Scheduler::EndWithEvent(absl::Time now, Sequence* sequence, Outcome outcome,
                             std::vector<Event>* events) {
  Event event = MakeEvent(now, Event::Kind::kFinished, *sequence);
  event.outcome.reason = outcome.reason;
  event.outcome.status = std::move(outcome.status);
  event.outcome.stop_token_id = outcome.stop_token_id;
  event.outcome.stop_token_logprobs = std::move(outcome.stop_token_logprobs);
  events->push_back(std::move(event));
  End(sequence);
}

// The request is no more. Its slot and blocks go at once, or with the last plan that uses them.
void Scheduler::End(Sequence* sequence) {
  if (sequence->is_suspect()) --num_suspects_;
  deadlines_.erase({sequence->request.deadline, sequence->key.number});
  const auto it = sequences_.find(sequence->request.id);
  std::unique_ptr<Sequence> owned = std::move(it->second);
  sequences_.erase(it);
  if (sequence->state == Sequence::State::kWaiting) {
    waiting_.erase(sequence);
    return;
  }
  std::erase(running_, sequence);
  sequence->state = Sequence::State::kEnded;
  if (sequence->num_in_flight == 0) {
    Vacate(sequence);
  } else {
    sequence->table.Abandon(sequence->has_failed ? 0 : sequence->num_planned);
    ended_.push_back(std::move(owned));
  }
}

// Gives slot and blocks back. REQUIRES: no plan uses them.
void Scheduler::Vacate(Sequence* sequence) {
  CHECK_EQ(sequence->num_in_flight, 0u);
  sequence->table.Release();
  ended_slots_.push_back(sequence->slot);
  free_slots_.insert(std::exchange(sequence->slot, Sequence::kNoSlot));
}

// From running to waiting.
void Scheduler::Requeue(Sequence* sequence) {
  std::erase(running_, sequence);
  Vacate(sequence);
  sequence->state = Sequence::State::kWaiting;
  sequence->num_computed = 0;
  sequence->num_planned = 0;
  sequence->is_decoding = false;
  sequence->inherited_key.reset();
  waiting_.insert(sequence);
}

std::vector<Event> Scheduler::Reset(absl::Time now) {
  std::vector<Event> events;
  std::vector<Sequence*> lost;  // live ones of the uncommitted plans
  for (const InFlight& step : in_flight_) {
    for (const PlannedRow& row : step.rows) {
      if (std::exchange(row.sequence->num_in_flight, 0) == 0) continue;  // seen
      if (row.sequence->state != Sequence::State::kRunning) continue;
      row.sequence->trial_until = row.sequence->num_planned;
      lost.push_back(row.sequence);
    }
  }
  in_flight_.clear();
  for (const auto& sequence : ended_) Vacate(sequence.get());
  ended_.clear();
  // A loss without it breaks a sequence's row of losses; a suspect's trial is still to come.
  const auto acquit_unless_lost = [&lost](Sequence* sequence) {
    const bool was_lost = std::find(lost.begin(), lost.end(), sequence) != lost.end();
    if (!was_lost && !sequence->is_suspect()) sequence->num_losses = 0;
  };
  std::for_each(running_.begin(), running_.end(), acquit_unless_lost);
  std::for_each(waiting_.begin(), waiting_.end(), acquit_unless_lost);
  for (Sequence* sequence : lost) {
    if (sequence->is_suspect()) {
      EndWithEvent(now, sequence,
                   {.reason = FinishReason::kError,
                    .status = absl::InternalError(
                        "the worker group was lost three times in a row while it computed this "
                        "request, the last time with no other request beside it")},
                   &events);
    } else if (++sequence->num_losses; sequence->is_suspect()) {
      ++num_suspects_;
    }
  }
  while (!running_.empty()) Requeue(running_.back());
  for (Sequence* sequence : waiting_) sequence->waits_for.reset();
  pool_.Clear();
  state_hash_.Clear();
  ended_slots_.clear();  // the new epoch's ranks have no slots
  last_progress_ = now;
  return events;
}

SchedulerStats Scheduler::stats() const {
  return {.num_queued = static_cast<uint32_t>(waiting_.size()),
          .num_running = static_cast<uint32_t>(running_.size()),
          .num_free_blocks = pool_.num_free(),
          .num_held_blocks = pool_.num_held(),
          .num_cached_blocks = pool_.num_cached(),
          .num_preemptions = num_preemptions_,
          .num_prefix_queries = num_prefix_queries_,
          .num_prefix_hits = num_prefix_hits_,
          .num_stalls = num_stalls_};
}

void Scheduler::CheckInvariants() const {
  pool_.CheckInvariants();
  CHECK_EQ(sequences_.size(), running_.size() + waiting_.size());
  CHECK_EQ(free_slots_.size() + running_.size() + ended_.size(), options_.max_batch_seqs);
  CHECK(std::is_sorted(running_.begin(), running_.end(), ByKey()));
  CHECK_LE(in_flight_.size(), options_.max_plans_in_flight);
  absl::flat_hash_map<const Sequence*, std::pair<uint32_t, uint32_t>> planned;  // rows, tokens
  for (const InFlight& step : in_flight_) {
    for (const PlannedRow& row : step.rows) {
      auto& [num_rows, num_tokens] = planned[row.sequence];
      ++num_rows;
      num_tokens += row.num_tokens;
    }
  }
  for (const auto& sequence : ended_) {
    CHECK_GT(sequence->num_in_flight, 0u);
    CHECK_EQ(sequence->num_in_flight, planned[sequence.get()].first);
  }
  uint32_t num_suspects = 0;
  for (const Sequence* sequence : running_) {
    CHECK(sequence->state == Sequence::State::kRunning);
    CHECK_LT(sequence->slot, options_.max_batch_seqs);
    CHECK_LT(sequence->num_computed, sequence->log_size());
    CHECK_EQ(sequence->num_in_flight, planned[sequence].first);
    CHECK_EQ(sequence->num_planned, sequence->num_computed + planned[sequence].second);
    CHECK_LE(sequence->num_planned, sequence->max_kv_tokens());
    if (is_pipeline() && sequence->is_decoding && sequence->num_in_flight == 0) {
      CHECK_EQ(sequence->num_planned + 1, sequence->log_size());  // its token is known
    }
    CHECK(sequence->num_in_flight > 0 || sequence->has_more_to_plan());
    CHECK_GE(sequence->table.num_blocks(), pool_.num_blocks_for(sequence->num_planned));
    CHECK_LE(sequence->num_preemptions, kMaxPreemptions);
    num_suspects += sequence->is_suspect();
  }
  for (const Sequence* sequence : waiting_) {
    CHECK(sequence->state == Sequence::State::kWaiting);
    CHECK_EQ(sequence->table.num_blocks(), 0u);
    CHECK_EQ(sequence->num_in_flight, 0u);
    num_suspects += sequence->is_suspect();
  }
  CHECK_EQ(num_suspects, num_suspects_);
  if (running_.empty() && ended_.empty()) CHECK_EQ(pool_.num_held(), 0u);
}

}  // namespace shoal::router
