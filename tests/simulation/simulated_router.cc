#include "tests/simulation/simulated_router.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace shoal::simulation {

using router::Group;

namespace {

// For what a router is to do at a certain time.
constexpr absl::Duration kGrace = absl::Milliseconds(50);

}  // namespace

SimulatedRouter::SimulatedRouter(const Scenario* scenario, EventQueue* queue, RankFleet* fleet,
                                 ClientLedger* ledger, Report* report, uint64_t owner,
                                 Callbacks callbacks)
    : scenario_(*scenario),
      queue_(queue),
      fleet_(fleet),
      ledger_(ledger),
      report_(report),
      owner_(owner),
      callbacks_(std::move(callbacks)),
      random_(scenario->seed, 10000 + owner),
      control_(scenario->options),
      next_id_(owner * 1000000),
      unready_since_(queue->now()) {
  fleet_->Connect(owner_, [this](router::GroupEvent event) {
    group_events_.push_back(std::move(event));
    Wake();
  });
  control_.Start(now());
  Check();
  CarryOutActions();
  Wake();
}

SimulatedRouter::~SimulatedRouter() {
  *lives_ = false;
  fleet_->Disconnect();
  Tally& tally = report_->tally();
  tally.num_steps += control_.counters().num_steps;
  if (control_.scheduler() == nullptr) return;
  tally.num_preemptions += control_.scheduler()->stats().num_preemptions;
  tally.num_prefix_hits += control_.scheduler()->stats().num_prefix_hits;
}

void SimulatedRouter::Wake() {
  if (std::exchange(is_awake_, true)) return;
  queue_->After(random_.Between(absl::ZeroDuration(), absl::Microseconds(300)),
                [this, lives = lives_] {
                  if (!*lives) return;
                  is_awake_ = false;
                  Loop();
                });
}

void SimulatedRouter::WakeAt(absl::Time time) {
  if (time >= wakes_at_) return;
  wakes_at_ = time;
  queue_->At(time, [this, lives = lives_] {
    if (!*lives || now() < wakes_at_) return;
    wakes_at_ = absl::InfiniteFuture();
    Loop();
  });
}

void SimulatedRouter::Submit(const ClientPlan& client) {
  inbox_.push_back({.submits = &client});
  Wake();
}

bool SimulatedRouter::has_pending(const ClientPlan& client) const {
  return std::any_of(inbox_.begin(), inbox_.end(),
                     [&](const Input& input) { return input.submits == &client; });
}

void SimulatedRouter::Cancel(uint64_t id) {
  inbox_.push_back({.cancels = id});
  Wake();
}

void SimulatedRouter::Finish(uint64_t id) {
  inbox_.push_back({.finishes = id});
  Wake();
}

void SimulatedRouter::Stop() {
  is_stopping_ = true;
  control_.FailAll(now(), absl::UnavailableError("the router is shutting down"));
  Check();
}

void SimulatedRouter::Loop() {
  for (const Input& input : std::exchange(inbox_, {})) Handle(input);
  control_.OnTimer(now());
  Check();
  while (!group_events_.empty()) {
    const router::GroupEvent event = std::move(group_events_.front());
    group_events_.pop_front();
    Handle(event);
  }
  do {
    Check();
    CarryOutActions();
  } while (control_.Plan(now()));
  ledger_->CheckDeadlines(now());
  const router::Scheduler* scheduler = control_.scheduler();
  if (control_.group().state() == Group::State::kReady && scheduler->has_work() &&
      scheduler->num_plans_in_flight() == 0) {
    Violation("order: there is work, the group is ready, and no plan is made");
  }
  const absl::Duration given_up = scenario_.options.group.recovery_timeout + kGrace;
  if (control_.group().state() != Group::State::kReady && ledger_->num_live() > 0 &&
      now() > unready_since_ + given_up) {
    Violation("terminal: requests wait for a group beyond the recovery timeout");
  }
  const absl::Time next = control_.NextDeadline();
  if (next <= now()) {
    Violation("idle: the control wants to be called again at once");
  } else if (next != absl::InfiniteFuture()) {
    WakeAt(next);
  }
}

// --- What clients want ---

void SimulatedRouter::Handle(const Input& input) {
  if (input.submits != nullptr) return HandleSubmission(*input.submits);
  if (input.cancels != 0) {
    Stream* stream = ledger_->Find(input.cancels);
    if (stream != nullptr) stream->is_cancelled = true;
    control_.Cancel(now(), input.cancels, "the client cancelled");
    Check();
    if (stream != nullptr && !stream->has_ended) {
      Violation(absl::StrCat("terminal: request ", input.cancels, " goes on after its cancel"));
    }
    return;
  }
  control_.Finish(input.finishes);
  if (Stream* stream = ledger_->Find(input.finishes); stream != nullptr) {
    ledger_->End(stream, "stop string");
  }
  Check();
}

void SimulatedRouter::HandleSubmission(const ClientPlan& client) {
  std::vector<Stream*> streams;  // those that have not ended elsewhere
  std::vector<router::Request> requests;
  for (Stream* stream : ledger_->of(client)) {
    if (stream->has_ended) continue;
    router::Request request = stream->request;
    request.id = ++next_id_;
    request.arrival = now();
    request.deadline = stream->deadline;
    if (!stream->tokens.empty()) {  // resumed
      request.num_prompt_tokens = static_cast<uint32_t>(request.token_ids.size());
      request.token_ids.insert(request.token_ids.end(), stream->tokens.begin(),
                               stream->tokens.end());
    }
    streams.push_back(stream);
    requests.push_back(std::move(request));
  }
  if (streams.empty()) return;
  const bool is_ready = control_.group().state() == Group::State::kReady;
  const absl::Status status = control_.Submit(now(), requests);
  Note("client ", client.number, " submits: ", status.ToString());
  Check();
  if (!status.ok()) {
    ledger_->OnRefused(client, status, is_ready, ledger_->num_live());
    callbacks_.on_refused(client, status);
    return;
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    ledger_->OnAccepted(now(), streams[i], requests[i].id);
  }
}

// --- What ranks say ---

void SimulatedRouter::Handle(const router::GroupEvent& event) {
  bool is_complete = false;
  if (const auto* reply = std::get_if<router::StepReplied>(&event)) {
    is_complete = NoteReply(*reply);
  } else if (const auto* opened = std::get_if<router::StreamOpened>(&event)) {
    const bool is_over = opened->epoch == aborted_epoch_;
    if (opened->epoch == joined_epoch_ && !is_over) opened_.insert(opened->rank);
  } else if (const auto* answered = std::get_if<router::RankAnswered>(&event)) {
    highest_epochs_[answered->rank] = answered->info.highest_epoch;
  }
  control_.OnGroupEvent(now(), event);
  NoteState();
  if (is_complete && !sent_.empty()) sent_.pop_front();
  Check();
}

// Whether the oldest plan has now been answered by every rank. What it put out may be told from
// here on.
bool SimulatedRouter::NoteReply(const router::StepReplied& reply) {
  for (Sent& sent : sent_) {
    if (sent.replied.contains(reply.rank)) continue;  // a rank answers in order
    if (reply.epoch != sent.step->epoch || reply.step != sent.step->plan.step) return false;
    if (reply.state_hash != sent.step->plan.state_hash) return false;
    sent.replied.insert(reply.rank);
    if (sent.replied.size() < fleet_->num_ranks()) return false;
    for (size_t i = 0; i < sent.rows.size(); ++i) {
      const router::StepRow& row = sent.step->plan.rows[i];
      const bool may_sample = row.outputs != router::StepRow::Outputs::kNone;
      if (sent.rows[i].is_live() && may_sample) ++sent.rows[i].stream->num_committed;
    }
    return true;
  }
  return false;
}

// A loss, or a return, that the last event brought.
void SimulatedRouter::NoteState() {
  const Group& group = control_.group();
  if (group.num_losses() != num_losses_) {
    num_losses_ = group.num_losses();
    unready_since_ = now();
    Note("the group is lost: ", group.last_failure().message());
    std::vector<Stream*> lost;
    for (const Sent& sent : sent_) {
      for (const Occupant& row : sent.rows) {
        const bool is_known = std::find(lost.begin(), lost.end(), row.stream) != lost.end();
        if (row.is_live() && !is_known) lost.push_back(row.stream);
      }
    }
    if (++report_->tally().num_losses > fleet_->num_disturbances()) {
      Violation(
          absl::StrCat("epoch: the group is lost without cause: ", group.last_failure().message()));
    }
    ledger_->OnLoss(lost);
    sent_.clear();
    slots_.clear();
  }
}

bool SimulatedRouter::may_be_unavailable() const {
  const bool is_late = now() - unready_since_ >= scenario_.options.group.recovery_timeout;
  return is_stopping_ || (control_.group().state() != Group::State::kReady && is_late);
}

// --- After every call ---

void SimulatedRouter::Check() {
  NoteState();
  control_.CheckInvariants();
  for (router::ControlAction& action : control_.TakeActions()) {
    actions_.push_back(std::move(action));
  }
  for (const router::Event& event : control_.TakeEvents()) {
    Stream* stream = ledger_->Find(event.request_id);
    ledger_->OnEvent(now(), event, may_be_unavailable());
    if (stream == nullptr) continue;
    Note("client ", stream->client->number, ".", stream->request.sampling.choice,
         stream->has_ended ? absl::StrCat(" ends: ", stream->end)
                           : absl::StrCat(" has ", stream->tokens.size(), " tokens"));
    if (event.kind == router::Event::Kind::kTokens) callbacks_.on_tokens(stream);
  }
  if (control_.scheduler() == nullptr) return;
  const router::SchedulerStats stats = control_.scheduler()->stats();
  if (stats.num_free_blocks + stats.num_held_blocks + stats.num_cached_blocks !=
      scenario_.options.scheduler.num_blocks) {
    Violation("blocks: free + held + cached is not the total");
  }
  if (stats.num_queued + stats.num_running != ledger_->num_live()) {
    // Submit is checked before the ledger hears that it succeeded.
    const bool may_be_ahead = stats.num_queued + stats.num_running > ledger_->num_live();
    if (!may_be_ahead) Violation("terminal: the scheduler has lost a request");
  }
}

void SimulatedRouter::CarryOutActions() {
  for (const router::ControlAction& action : std::exchange(actions_, {})) {
    std::visit([this](const auto& concrete) { CarryOut(concrete); }, action);
  }
}

void SimulatedRouter::CarryOut(const router::ProbeRank& action) { fleet_->Probe(action.rank); }

void SimulatedRouter::CarryOut(const router::JoinRank& action) {
  if (action.epoch != joined_epoch_) {
    Note("the ranks join epoch ", action.epoch);
    uint64_t highest = joined_epoch_;
    for (const auto& [rank, epoch] : highest_epochs_) highest = std::max(highest, epoch);
    if (action.epoch <= highest) {
      Violation(absl::StrCat("epoch: ", action.epoch, " after ", highest));
    }
    if (!opened_.empty()) Violation("epoch: ranks were not told that the last one is over");
    joined_epoch_ = action.epoch;
    slots_.clear();
    block_salts_.clear();
  }
  fleet_->Join(action.rank, action.epoch);
}

void SimulatedRouter::CarryOut(const router::OpenStream& action) {
  if (action.epoch != joined_epoch_) Violation("epoch: a stream of another than the joined one");
  fleet_->OpenStream(action.rank, action.epoch);
}

void SimulatedRouter::CarryOut(const router::AbortRank& action) {
  if (action.epoch == joined_epoch_) opened_.clear();
  aborted_epoch_ = action.epoch;
  fleet_->Abort(action.rank, action.epoch);
}

void SimulatedRouter::CarryOut(const router::FailRequests& action) {
  if (ledger_->num_live() > 0) Violation("terminal: requests outlive " + action.status.ToString());
}

void SimulatedRouter::CarryOut(const router::ReplaceRank& action) { fleet_->Replace(action.rank); }

void SimulatedRouter::CarryOut(const router::SendStep& action) {
  if (action.epoch != joined_epoch_ || opened_.size() != fleet_->num_ranks()) {
    Violation(absl::StrCat("epoch: step ", action.plan.step, " is sent to a rank that is fenced"));
  }
  // A loss may follow in the same loop: then nobody gets it.
  Sent sent = Watch(action);
  fleet_->Send(sent.step);
  sent_.push_back(std::move(sent));
  if (sent_.size() > scenario_.options.scheduler.max_plans_in_flight) {
    Violation("plan: more plans are with the ranks than may be");
  }
}

SimulatedRouter::Sent SimulatedRouter::Watch(const router::SendStep& action) {
  auto step = std::make_shared<SentStep>(
      SentStep{.epoch = action.epoch, .plan = action.plan, .killers = {}});
  Sent sent;
  for (const uint32_t slot : action.plan.ended_slots) slots_.erase(slot);
  for (const router::SequenceStart& start : action.plan.starts) WatchStart(start);
  for (const router::StepRow& row : action.plan.rows) {
    const auto occupant = slots_.find(row.slot);
    if (occupant == slots_.end()) {
      Violation("plan: a row of a slot that nobody has");
      continue;
    }
    if (!occupant->second.is_live()) Violation("plan: a row of a sequence that has ended");
    const ClientPlan& client = *occupant->second.stream->client;
    if (client.is_poison) step->killers.insert(client.number);
    for (const uint32_t block : row.new_block_ids) block_salts_[block] = client.request.cache_salt;
    sent.rows.push_back(occupant->second);
  }
  report_->Mark(action.plan.state_hash);
  report_->Mark(static_cast<uint64_t>(absl::ToUnixNanos(now())));
  Note("step ", action.plan.step, " of epoch ", action.epoch, ": ", action.plan.rows.size(),
       " rows, ", action.plan.starts.size(), " starts");
  sent.step = std::move(step);
  return sent;
}

void SimulatedRouter::WatchStart(const router::SequenceStart& start) {
  Stream* stream = ledger_->of(static_cast<uint32_t>(start.sampling.seed), start.sampling.choice);
  if (stream->id == 0) Violation("plan: a sequence starts that has ended");
  ledger_->CheckOrder(*stream);
  stream->was_started = true;
  slots_[start.slot] = {stream, stream->id};
  const std::string& salt = stream->request.cache_salt;
  const uint32_t num_cached = start.num_cached_tokens / scenario_.options.scheduler.block_size;
  for (uint32_t i = 0; i < start.block_ids.size(); ++i) {
    std::string& of_block = block_salts_[start.block_ids[i]];
    if (i < num_cached && of_block != salt) Violation("blocks: a cache hit in another's salt");
    of_block = salt;
  }
}

void SimulatedRouter::CheckIdle() {
  const router::Scheduler* scheduler = control_.scheduler();
  if (control_.group().state() != Group::State::kReady) {
    return Violation("idle: the group is not ready though all ranks are");
  }
  const router::SchedulerStats stats = scheduler->stats();
  if (stats.num_queued + stats.num_running > 0) Violation("idle: requests are left");
  if (stats.num_held_blocks > 0) Violation("blocks: some are held when nobody runs");
  if (scheduler->num_plans_in_flight() > 0 || !sent_.empty()) Violation("idle: a plan is left");
  if (control_.NextDeadline() != absl::InfiniteFuture()) Violation("idle: it waits for a timer");
}

}  // namespace shoal::simulation
