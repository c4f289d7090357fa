#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/state_hash.h"
#include "router/control/block_pool.h"
#include "router/control/cost_model.h"
#include "router/control/plan.h"
#include "router/control/request.h"
#include "router/control/sequence.h"

namespace shoal::router {

struct SchedulerOptions {
  uint32_t num_blocks = 0;
  uint32_t block_size = 16;  // tokens
  uint32_t max_batch_tokens = 512;
  uint32_t max_batch_seqs = 64;         // REQUIRES: <= max_batch_tokens
  uint32_t max_seq_len = 4096;          // prompt and generated tokens
  uint32_t max_prefill_chunk = 0;       // tokens of one prompt in one step; 0 = max_batch_tokens
  uint32_t max_queued_requests = 1024;  // beyond those that the batch has room for
  uint32_t num_stages = 1;              // of the group's pipeline
  uint32_t max_plans_in_flight = 2;     // 1: a plan is made when the one before is committed
  bool enable_prefix_cache = true;
  uint64_t hash_mask = ~uint64_t{0};                  // see BlockPoolOptions
  absl::Duration aging_interval = absl::Seconds(30);  // what one priority level is worth
  absl::Duration stall_timeout = absl::Seconds(10);
};

struct SchedulerStats {
  uint32_t num_queued = 0;
  uint32_t num_running = 0;
  uint32_t num_free_blocks = 0;
  uint32_t num_held_blocks = 0;
  uint32_t num_cached_blocks = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_prefix_queries = 0;  // tokens looked up in the prefix cache at admissions
  uint64_t num_prefix_hits = 0;     // tokens found
  uint64_t num_stalls = 0;          // times that work was there and nothing moved
};

// What there is to do before a request's first token, were it submitted now.
struct Backlog {
  uint64_t num_tokens_ahead = 0;   // of prompts that are being computed, or wait before it
  uint32_t num_own_tokens = 0;     // that the cache does not have
  uint32_t num_waiting_ahead = 0;  // sequences
  uint32_t num_free_slots = 0;
  struct Running {
    uint32_t num_generated = 0;
    uint32_t num_left = 0;  // tokens, at most
  };
  std::vector<Running> running;
  StepWork decodes;  // one step of those that decode
};

// Batches the requests of one worker group step by step. Owns every sequence's token log, its
// blocks and its slot; the ranks only execute. A state machine: no thread, clock or I/O, the same
// calls give the same plans. One thread.
//
//   Submit --> waiting --PlanStep--> running --CommitStep--> ... --> kFinished
//                 ^                     |
//                 +---- preempted ------+   blocks freed, recomputed later
//
// One total order, see OrderKey. The first in it progresses at every step. The last of the running
// sequences is the victim when blocks run out, and a waiting request of a higher priority
// takes its place. After kMaxPreemptions a sequence is only admitted when its longest possible
// length fits beside the others like it, and is never a victim again. A step first advances every
// sequence that decodes, then gives the rest of max_batch_tokens to prefills in order.
//
// A plan is made ahead, while another one is with the ranks, if it only carries on what runs: the
// tokens on their way are named by their rows, not by their ids. A sequence that turns out to have
// ended costs one discarded row. Admissions, preemptions and trials wait until every plan is
// committed; so does a plan that would keep a newcomer waiting for long. Slot and blocks of a
// sequence are free at the commit of the last plan that has a row of it.
//
// In a pipeline (num_stages > 1) plans overlap so that every stage has one. The ranks of the first
// stage do not know what the last has sampled, so a sequence that decodes is in one plan at a time,
// its row has the token, and each plan takes a part of them. The chunks of a prompt follow each
// other. Newcomers start at once; a victim is preempted when no plan has it, and gets no rows until
// then.
//
// Every accepted request gets exactly one kFinished event, unless the caller ended it by Finish().
class Scheduler {
 public:
  static constexpr uint32_t kMaxPreemptions = 3;
  // Prompt tokens of a plan made ahead: about the work of one decoding step.
  static constexpr uint32_t kMaxPrefillAhead = 32;
  // Prompt tokens of a plan in a pipeline: enough for the products to be efficient, few enough for
  // all stages to have a part of one prompt.
  static constexpr uint32_t kMinPipelinePrefill = 64;

  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();

  // Errors: INVALID_ARGUMENT: could not run even alone. ALREADY_EXISTS: the id is in use.
  // RESOURCE_EXHAUSTED: the queue is full. DEADLINE_EXCEEDED.
  absl::Status Submit(absl::Time now, Request request);

  // The most tokens that may be generated after a prompt: the bound of Request::max_tokens.
  uint32_t MaxNewTokens(uint32_t num_prompt_tokens) const;

  // Ends a request with kCancelled; no event if there is none of this id. Blocks that a plan uses
  // are freed when it commits.
  std::vector<Event> Cancel(absl::Time now, uint64_t id, absl::string_view reason);

  // Ends a request whose text is complete (a stop string); the caller makes its own last event.
  void Finish(uint64_t id);

  // Ends every request with kError and this status: the group will not come back.
  std::vector<Event> FailAll(absl::Time now, const absl::Status& status);

  // The next step; nullopt when there is nothing to do, or nothing before the next commit.
  // `max_prefill_tokens`: of prompts, at most; at least 1.
  std::optional<StepPlan> PlanStep(absl::Time now, uint32_t max_prefill_tokens = ~uint32_t{0});

  // Of the plan made last. REQUIRES: it is with the ranks.
  const StepWork& newest_work() const { return in_flight_.back().work; }
  // Of one step of all sequences that decode.
  StepWork DecodeWork() const;
  // Of the first prompt that is being computed: what of it the plans so far compute; else 0.
  uint32_t PrefillPosition() const;
  // Cost: a look at each sequence.
  Backlog BacklogOf(const Request& request);

  // Of the oldest plan with the ranks. REQUIRES: there is one. INTERNAL, with nothing changed, if
  // the result does not fit it: then the group is lost.
  absl::StatusOr<std::vector<Event>> CommitStep(absl::Time now, const StepResult& result);

  // When Expire wants to be called next.
  absl::Time NextDeadline() const;
  // Ends the requests whose deadline is past, and counts a stall.
  std::vector<Event> Expire(absl::Time now);

  // The ranks lost their KV: every running sequence goes back to be replayed as prefill with the
  // tokens it has. A sequence that was in an uncommitted plan of two successive losses (which of
  // them ran cannot be told) is a suspect: suspects are replayed alone, one by one, no plan ahead;
  // one that is lost alone too ends with kError INTERNAL.
  std::vector<Event> Reset(absl::Time now);

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  uint32_t num_plans_in_flight() const { return static_cast<uint32_t>(in_flight_.size()); }
  // Work is there and nothing moved for the stall timeout: not ready.
  bool is_stalled() const { return is_stalled_ && has_work(); }
  SchedulerStats stats() const;
  const SchedulerOptions& options() const { return options_; }

  // CHECKs all that must hold between calls.
  void CheckInvariants() const;

 private:
  struct ByKey {
    bool operator()(const Sequence* a, const Sequence* b) const { return a->key < b->key; }
  };
  struct PlannedRow {
    Sequence* sequence;
    uint32_t num_tokens;
    bool samples;
    uint32_t num_prompt_logprobs;
  };
  struct InFlight {
    uint64_t step;
    std::vector<PlannedRow> rows;
    StepWork work;
  };
  // A plan being made.
  struct Draft {
    absl::Time now;
    StepPlan plan;
    std::vector<PlannedRow> rows;
    StepWork work;
    uint32_t budget = 0;           // tokens
    uint32_t prefill_budget = 0;   // of them, at most for prompts
    Sequence* draining = nullptr;  // a victim that plans still have: no row for it
  };

  // scheduler_commit.cc
  absl::Status CheckResult(const InFlight& step, const StepResult& result) const;
  void CommitRow(absl::Time now, const PlannedRow& row, const RowOutput& output,
                 std::vector<Event>* events);
  void DeliverPromptLogprobs(absl::Time now, Sequence* sequence, uint32_t first,
                             const RowOutput& output, std::vector<Event>* events);
  void AcceptToken(absl::Time now, Sequence* sequence, const RowOutput& output,
                   std::vector<Event>* events);

  // scheduler.cc
  absl::Status CheckRequest(absl::Time now, const Request& request) const;
  OrderKey KeyOf(const Request& request, uint64_t number) const;
  static Event MakeEvent(absl::Time now, Event::Kind kind, const Sequence& sequence);
  void EndWithEvent(absl::Time now, Sequence* sequence, Outcome outcome,
                    std::vector<Event>* events);
  void End(Sequence* sequence);
  void Vacate(Sequence* sequence);
  void Requeue(Sequence* sequence);
  Sequence* Find(uint64_t id) const;

  // scheduler_plan.cc
  bool is_pipeline() const { return options_.num_stages > 1; }
  bool MayPlanAhead();
  bool CanDecode(const Sequence& sequence) const;
  uint32_t MaxDecodes() const;
  bool CouldAdmit();
  static bool IsVictimOf(const Sequence& first, const Sequence& running);
  bool WantsToPreempt(Sequence* first);
  void PreemptForPriority(Draft* draft);
  void PlanDecodes(Draft* draft);
  void PlanPrefills(Draft* draft);
  void PlanTrial(Draft* draft);
  bool NeedsBlockToDecode(const Sequence& sequence) const;
  bool MakeRoomToDecode(Sequence* sequence, Draft* draft);
  void Preempt(Sequence* victim);
  Sequence* NextCandidate(std::set<Sequence*, ByKey>::iterator* next, PrefixMatch* match);
  void InheritKey(const Sequence& waiter);
  bool IsAdmissible(const Sequence& sequence, const PrefixMatch& match) const;
  void Admit(Sequence* sequence, const PrefixMatch& match, Draft* draft);
  uint32_t NextChunk(const Sequence& sequence, uint32_t budget) const;
  void AddRow(Sequence* sequence, Draft* draft);
  StepPlan Seal(Draft draft);

  const SchedulerOptions options_;
  BlockPool pool_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Sequence>> sequences_;  // live; never iterated
  std::vector<std::unique_ptr<Sequence>> ended_;  // until the commit of the last plan with them
  std::set<Sequence*, ByKey> waiting_;
  std::vector<Sequence*> running_;                                  // ordered by key
  std::map<std::pair<absl::Time, uint64_t>, Sequence*> deadlines_;  // by deadline and number
  std::set<uint32_t> free_slots_;
  std::vector<uint32_t> ended_slots_;  // the ranks do not know yet
  std::deque<InFlight> in_flight_;     // oldest first
  base::StateHash state_hash_;
  uint64_t next_step_ = 1;
  uint64_t next_number_ = 0;
  uint32_t num_suspects_ = 0;  // of the live sequences
  absl::Time last_progress_ = absl::InfinitePast();
  bool is_stalled_ = false;
  uint64_t num_preemptions_ = 0;
  uint64_t num_prefix_queries_ = 0;
  uint64_t num_prefix_hits_ = 0;
  uint64_t num_stalls_ = 0;
};

}  // namespace shoal::router
