#include "tests/simulation/rank_fleet.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace shoal::simulation {
namespace {

using absl::Milliseconds;
using router::GroupEvent;

constexpr absl::Duration kProbeTimeout = Milliseconds(400);
constexpr absl::Duration kKeepalive = absl::Seconds(1);
constexpr absl::Duration kConnectTimeout = Milliseconds(200);
constexpr absl::Duration kMaxLateness = Milliseconds(100);
constexpr absl::Duration kMinBackoff = Milliseconds(20);
constexpr absl::Duration kMaxBackoff = Milliseconds(500);
constexpr absl::Duration kLongLife = absl::Seconds(2);

}  // namespace

RankFleet::RankFleet(const Scenario* scenario, EventQueue* queue, Report* report)
    : scenario_(*scenario),
      queue_(queue),
      report_(report),
      num_shards_(scenario->options.group.tensor_parallel_size),
      random_(scenario->seed, /*owner=*/2),
      processes_(scenario->num_ranks) {
  for (uint32_t rank = 0; rank < num_ranks(); ++rank) {
    links_.push_back({.random = Random(scenario->seed, 100 + rank)});
    Start(rank);
  }
}

bool RankFleet::is_calm() const {
  return calls_.empty() && std::all_of(processes_.begin(), processes_.end(), [](const Process& p) {
           return p.is_alive && !p.is_frozen && !p.is_impostor && p.steps.empty();
         });
}

// --- Messages ---

absl::Time RankFleet::ArrivalTime(uint32_t rank) {
  Link& link = links_[rank];
  const absl::Duration latency = link.random.OneIn(8)
                                     ? link.random.Between(Milliseconds(1), Milliseconds(20))
                                     : link.random.Between(absl::Microseconds(20), Milliseconds(1));
  return std::max(queue_->now() + latency, link.cut_until);
}

absl::Time RankFleet::StreamTime(uint32_t rank, absl::Time* last) {
  return *last = std::max(ArrivalTime(rank), *last + absl::Nanoseconds(1));
}

// Runs `handler` in the process that the rank has now, if it still lives by then; one that is
// frozen gets to it when it is thawed.
void RankFleet::AtProcess(uint32_t rank, absl::Time time, std::function<void()> handler) {
  const uint64_t instance = processes_[rank].instance;
  queue_->At(time, [this, rank, instance, handler = std::move(handler)]() mutable {
    Process& process = processes_[rank];
    if (!process.is_alive || process.instance != instance) return;
    if (process.is_frozen) {
      process.backlog.push_back(std::move(handler));
    } else {
      handler();
    }
  });
}

void RankFleet::PostNow(GroupEvent event) {
  if (owner_ != 0) post_(std::move(event));
}

void RankFleet::Connect(uint64_t owner, Post post) {
  owner_ = owner;
  ++num_routers_;
  post_ = std::move(post);
}

void RankFleet::Disconnect() {
  calls_.clear();
  for (uint32_t rank = 0; rank < num_ranks(); ++rank) CloseAtRouter(rank);
  owner_ = 0;
}

// --- Calls ---

uint64_t RankFleet::StartCall(uint32_t rank, uint64_t epoch) {
  const uint64_t call = next_id_++;
  calls_[call] = {rank, epoch};
  const bool is_dead = !processes_[rank].is_alive;
  if (is_dead || links_[rank].cut_until > queue_->now() + kConnectTimeout) {
    const absl::Duration delay = is_dead ? Milliseconds(1) : kConnectTimeout;
    queue_->After(delay,
                  [this, call] { FailCall(call, absl::UnavailableError("cannot connect")); });
  }
  return call;
}

void RankFleet::FailCall(uint64_t call, const absl::Status& status) {
  const auto it = calls_.find(call);
  if (it == calls_.end()) return;
  const Call failed = it->second;
  calls_.erase(it);
  PostNow(router::RankFailed{failed.rank, failed.epoch, status});
}

// Those that were started before `limit`, a next_id_.
void RankFleet::FailCallsOf(uint32_t rank, uint64_t limit, const absl::Status& status) {
  std::vector<uint64_t> failed;
  for (const auto& [id, call] : calls_) {
    if (call.rank == rank && id < limit) failed.push_back(id);
  }
  for (const uint64_t call : failed) FailCall(call, status);
}

void RankFleet::Answer(uint32_t rank, uint64_t call, GroupEvent event) {
  queue_->At(ArrivalTime(rank), [this, call, event = std::move(event)] {
    if (calls_.erase(call) > 0) PostNow(event);
  });
}

void RankFleet::Refuse(uint32_t rank, uint64_t call, uint64_t epoch, const absl::Status& status) {
  Answer(rank, call, router::RankFailed{rank, epoch, status});
}

void RankFleet::Probe(uint32_t rank) {
  const uint64_t call = StartCall(rank, /*epoch=*/0);
  auto is_handled = std::make_shared<bool>(false);  // by the process and the timer
  queue_->After(kProbeTimeout, [this, call, is_handled] {
    if (!*is_handled) FailCall(call, absl::DeadlineExceededError("a probe"));
  });
  AtProcess(rank, ArrivalTime(rank), [this, rank, call, is_handled] {
    *is_handled = true;
    // Loading takes as long as it takes.
    AtProcess(rank, std::max(queue_->now(), processes_[rank].loaded),
              [this, rank, call] { AnswerProbe(rank, call); });
  });
}

void RankFleet::AnswerProbe(uint32_t rank, uint64_t call) {
  const Process& process = processes_[rank];
  const router::SchedulerOptions& limits = scenario_.options.scheduler;
  router::RankInfo info;
  info.instance_id = absl::StrCat(process.instance);
  info.version = "1";
  info.protocol_version = 1;
  info.model_fingerprint = process.is_impostor ? "another" : "model";
  info.numerics_id = "cpu";
  info.highest_epoch = process.highest_epoch;
  info.num_blocks = limits.num_blocks + (rank == 0 ? 0 : rank);
  info.block_size = limits.block_size;
  info.max_batch_tokens = limits.max_batch_tokens;
  info.max_batch_seqs = limits.max_batch_seqs;
  info.max_seq_len = limits.max_seq_len;
  Answer(rank, call, router::RankAnswered{rank, std::move(info)});
}

void RankFleet::Join(uint32_t rank, uint64_t epoch) {
  const uint64_t call = StartCall(rank, epoch);
  queue_->After(scenario_.options.group.join_timeout,
                [this, call] { FailCall(call, absl::DeadlineExceededError("a join")); });
  AtProcess(rank, ArrivalTime(rank),
            [this, rank, owner = owner_, epoch, call] { HandleJoin(rank, owner, epoch, call); });
}

void RankFleet::HandleJoin(uint32_t rank, uint64_t owner, uint64_t epoch, uint64_t call) {
  Process& process = processes_[rank];
  if (epoch <= process.highest_epoch) {
    return Refuse(rank, call, epoch, absl::AbortedError("the epoch is not above the highest seen"));
  }
  if (process.stream != 0 && process.stream_owner != owner) {
    return Refuse(rank, call, epoch, absl::FailedPreconditionError("another router owns it"));
  }
  if (std::exchange(process.refuses_join, false)) {
    return Refuse(rank, call, epoch, absl::InternalError("refused, for once"));
  }
  if (process.joining != 0) {
    Refuse(rank, process.join_call, process.joining, absl::AbortedError("a newer epoch"));
  }
  process.highest_epoch = epoch;
  process.stream = 0;
  EndEpoch(rank);
  process.joining = epoch;
  process.owner = owner;
  process.join_call = call;
  TryToMeet(rank);
}

// The shards of a stage join together.
void RankFleet::TryToMeet(uint32_t rank) {
  const uint64_t epoch = processes_[rank].joining;
  const uint64_t owner = processes_[rank].owner;
  const uint32_t first = first_of_stage(rank);
  for (uint32_t peer = first; peer < first + num_shards_; ++peer) {
    const Process& process = processes_[peer];
    if (!process.is_alive || process.is_frozen) return;
    if (process.joining != epoch || process.owner != owner) return;
  }
  for (uint32_t peer = first; peer < first + num_shards_; ++peer) {
    AtProcess(peer, queue_->now() + random_.Between(Milliseconds(1), Milliseconds(20)),
              [this, peer, epoch, owner] {
                Process& process = processes_[peer];
                if (process.joining != epoch || process.owner != owner) return;
                process.joining = 0;
                process.epoch = epoch;
                Answer(peer, process.join_call, router::RankJoined{peer, epoch});
              });
  }
}

void RankFleet::HandleAbort(uint32_t rank, uint64_t owner, uint64_t epoch) {
  Process& process = processes_[rank];
  if (process.owner != owner) return;
  if (process.joining == epoch) {
    Refuse(rank, process.join_call, epoch, absl::AbortedError("the router aborted"));
    process.joining = 0;
  } else if (process.epoch == epoch) {
    CloseAtRank(rank, absl::AbortedError("the router aborted"));
    EndEpoch(rank);
  }
}

void RankFleet::EndEpoch(uint32_t rank) {
  Process& process = processes_[rank];
  process.epoch = 0;
  process.steps.clear();
  process.num_done = 0;
  process.run = 0;
  process.puppet->Restart();
}

// --- Streams ---

void RankFleet::OpenStream(uint32_t rank, uint64_t epoch) {
  CloseAtRouter(rank);
  Link& link = links_[rank];
  const uint64_t stream = link.stream = next_id_++;
  link.stream_epoch = epoch;
  if (!processes_[rank].is_alive || link.cut_until > queue_->now() + kConnectTimeout) {
    queue_->After(kConnectTimeout, [this, rank, stream, epoch] {
      if (links_[rank].stream != stream) return;
      links_[rank].stream = 0;
      PostNow(router::StreamClosed{rank, epoch, absl::UnavailableError("cannot connect")});
    });
    return;
  }
  AtProcess(rank, StreamTime(rank, &link.last_to_rank),
            [this, rank, stream, epoch, owner = owner_] {
              Process& process = processes_[rank];
              process.stream = stream;
              process.stream_owner = owner;
              SendToRouter(rank, stream, epoch, router::StreamOpened{rank, epoch});
            });
}

// Silently; the rank hears of it.
void RankFleet::CloseAtRouter(uint32_t rank) {
  Link& link = links_[rank];
  const uint64_t stream = std::exchange(link.stream, 0);
  if (stream == 0) return;
  AtProcess(rank, StreamTime(rank, &link.last_to_rank),
            [this, rank, stream] { HandleStreamEnd(rank, stream); });
}

void RankFleet::HandleStreamEnd(uint32_t rank, uint64_t stream) {
  if (processes_[rank].stream != stream) return;
  processes_[rank].stream = 0;
  EndEpoch(rank);
}

void RankFleet::SendToRouter(uint32_t rank, uint64_t stream, uint64_t epoch, GroupEvent event) {
  Link& link = links_[rank];
  const bool may_come_late = link.random.OneIn(2);
  const uint64_t instance = processes_[rank].instance;
  queue_->At(StreamTime(rank, &link.last_to_router),
             [=, this, owner = owner_, event = std::move(event)] {
               if (links_[rank].lost_instance == instance) return;
               if (links_[rank].stream != stream) {
                 if (!may_come_late) return;
                 // Of an epoch that is over: nothing may come of it.
                 queue_->After(links_[rank].random.Between(absl::ZeroDuration(), kMaxLateness),
                               [this, event, owner] {
                                 if (owner == owner_) PostNow(event);
                               });
                 return;
               }
               if (std::holds_alternative<router::StreamClosed>(event)) links_[rank].stream = 0;
               PostNow(event);
             });
}

void RankFleet::CloseAtRank(uint32_t rank, const absl::Status& status) {
  const uint64_t stream = std::exchange(processes_[rank].stream, 0);
  if (stream == 0) return;
  const uint64_t epoch = links_[rank].stream_epoch;
  SendToRouter(rank, stream, epoch, router::StreamClosed{rank, epoch, status});
}

void RankFleet::Abort(uint32_t rank, uint64_t epoch) {
  AtProcess(rank, ArrivalTime(rank),
            [this, rank, owner = owner_, epoch] { HandleAbort(rank, owner, epoch); });
  CloseAtRouter(rank);
}

void RankFleet::Send(const std::shared_ptr<const SentStep>& step) {
  for (uint32_t rank = 0; rank < num_ranks(); ++rank) {
    Link& link = links_[rank];
    const uint64_t stream = link.stream;
    AtProcess(rank, StreamTime(rank, &link.last_to_rank),
              [this, rank, stream, step] { HandlePlan(rank, stream, step); });
  }
}

void RankFleet::HandlePlan(uint32_t rank, uint64_t stream,
                           const std::shared_ptr<const SentStep>& step) {
  Process& process = processes_[rank];
  if (process.stream != stream || stream == 0) return;
  if (step->epoch != process.epoch || process.owner != process.stream_owner) {
    return CloseAtRank(rank, absl::AbortedError("a plan of another epoch"));
  }
  process.steps.push_back(step);
  Advance();
}

// --- Steps ---

bool RankFleet::CanRun(uint32_t first) const {
  const Process& leader = processes_[first];
  if (leader.epoch == 0 || leader.steps.empty()) return false;
  for (uint32_t rank = first; rank < first + num_shards_; ++rank) {
    const Process& process = processes_[rank];
    if (!process.is_alive || process.is_frozen || process.run != 0) return false;
    if (process.epoch != leader.epoch || process.owner != leader.owner) return false;
    if (process.steps.empty() || process.num_done != leader.num_done) return false;
  }
  if (first == 0) return true;
  const Process& before = processes_[first - num_shards_];
  return before.epoch == leader.epoch && before.num_done > leader.num_done;
}

void RankFleet::Advance() {
  for (uint32_t first = 0; first < num_ranks(); first += num_shards_) {
    if (CanRun(first)) StartRun(first);
  }
}

void RankFleet::StartRun(uint32_t first) {
  const SentStep& step = *processes_[first].steps.front();
  const uint64_t run = next_id_++;
  absl::Duration duration = scenario_.step_time;
  for (const router::StepRow& row : step.plan.rows)
    duration += row.num_tokens * scenario_.token_time;
  for (uint32_t rank = first; rank < first + num_shards_; ++rank) {
    processes_[rank].run = run;
    if (processes_[rank].slow_until > queue_->now()) duration *= 10;
  }
  if (!step.killers.empty()) {
    AtProcess(first, queue_->now() + duration / 2,
              [this, first, run, step = processes_[first].steps.front()] {
                if (processes_[first].run == run) Poison(first, *step);
              });
  }
  queue_->After(duration, [this, first, run] { EndRun(first, run); });
}

// A poison sequence is lost three times and then ends; losses that others cause, or another router,
// may make it start over.
void RankFleet::Poison(uint32_t rank, const SentStep& step) {
  for (const uint32_t number : step.killers) {
    const uint64_t num_kills = ++num_poisonings_[number];
    const uint64_t num_others = num_disturbances_ + 1 - num_kills;
    const auto client = std::find_if(scenario_.clients.begin(), scenario_.clients.end(),
                                     [=](const ClientPlan& c) { return c.number == number; });
    if (num_kills > 3 * client->num_choices * (num_routers_ + num_others)) {
      report_->Violation(absl::StrCat("poison: client ", number, " killed ", num_kills, " ranks"));
    }
  }
  Kill(rank, "poison");
}

// All shards get through, or none.
void RankFleet::EndRun(uint32_t first, uint64_t run) {
  bool all_there = true;
  for (uint32_t rank = first; rank < first + num_shards_; ++rank) {
    const Process& process = processes_[rank];
    if (process.run != run || !process.is_alive || process.is_frozen) all_there = false;
  }
  for (uint32_t rank = first; rank < first + num_shards_; ++rank) {
    Process& process = processes_[rank];
    if (process.run != run) continue;
    process.run = 0;  // or, not all there, it waits in a collective
    if (!all_there) continue;
    const std::shared_ptr<const SentStep> step = std::move(process.steps.front());
    process.steps.pop_front();
    ++process.num_done;
    Reply(rank, *step);
  }
  Advance();
}

void RankFleet::Reply(uint32_t rank, const SentStep& step) {
  Process& process = processes_[rank];
  const router::StepResult result = process.puppet->Execute(step.plan);
  if (!process.puppet->errors().empty()) {
    report_->Violation(absl::StrCat("plan: rank ", rank, ": ", process.puppet->errors().front()));
  }
  router::StepReplied reply{.rank = rank,
                            .epoch = step.epoch,
                            .step = step.plan.step,
                            .state_hash = process.puppet->state_hash(),
                            .token_hash = base::kTokenHashSeed,
                            .outputs = {}};
  const bool is_in_last_stage = first_of_stage(rank) + num_shards_ == num_ranks();
  if (is_in_last_stage) {
    for (const router::RowOutput& output : result.outputs) {
      reply.token_hash = base::AddToTokenHash(reply.token_hash, output.slot, output.token_ids);
    }
    if (rank == first_of_stage(rank)) reply.outputs = result.outputs;
  }
  switch (std::exchange(process.lie, Fault::Kind::kKill)) {
    case Fault::Kind::kWrongStateHash:
      ++reply.state_hash;
      break;
    case Fault::Kind::kWrongStep:
      ++reply.step;
      break;
    case Fault::Kind::kWrongTokens:
      if (reply.outputs.empty() || reply.outputs[0].token_ids.empty()) {
        reply.token_hash += is_in_last_stage ? 1 : 0;
      } else {
        ++reply.outputs[0].token_ids[0];
      }
      break;
    default:
      break;
  }
  SendToRouter(rank, process.stream, step.epoch, std::move(reply));
}

// --- Processes ---

void RankFleet::Start(uint32_t rank) {
  Process& process = processes_[rank];
  const bool is_first = process.instance == 0;
  Process fresh;
  fresh.instance = next_id_++;
  fresh.started = queue_->now();
  fresh.loaded = queue_->now() + random_.Between(Milliseconds(1), Milliseconds(200));
  fresh.puppet = std::make_unique<router::PuppetRank>(scenario_.options.scheduler);
  fresh.backoff = process.backoff;
  fresh.is_impostor = process.comes_back_as_impostor;
  for (const ClientPlan& client : scenario_.clients) {
    if (client.fails) fresh.puppet->FailSeed(client.number, "non-finite logits");
  }
  process = std::move(fresh);
  if (is_first) return;
  report_->Note(queue_->now(), "rank ", rank, " starts again");
  if (!process.is_impostor) return;
  AtProcess(rank, queue_->now() + random_.Between(Milliseconds(100), Milliseconds(900)),
            [this, rank] { Kill(rank, "an operator"); });
}

void RankFleet::Kill(uint32_t rank, const char* why) {
  Process& process = processes_[rank];
  if (!process.is_alive) return;
  report_->Note(queue_->now(), "rank ", rank, " is killed by ", why);
  ++num_disturbances_;
  const uint64_t epoch = process.epoch;
  process.is_alive = false;
  if (random_.OneIn(2)) links_[rank].lost_instance = process.instance;
  // The router's side of its stream and calls ends.
  const uint64_t stream = links_[rank].stream;
  const uint64_t stream_epoch = links_[rank].stream_epoch;
  const absl::Status end_of_file = absl::UnavailableError("end of file");
  if (stream != 0) {
    queue_->At(StreamTime(rank, &links_[rank].last_to_router), [=, this] {
      if (links_[rank].stream != stream) return;
      links_[rank].stream = 0;
      PostNow(router::StreamClosed{rank, stream_epoch, end_of_file});
    });
  }
  queue_->At(ArrivalTime(rank), [this, rank, limit = next_id_, end_of_file] {
    FailCallsOf(rank, limit, end_of_file);
  });
  // A peer that waits for it in a collective sees the end of its socket, sooner or later.
  for (uint32_t peer = 0; peer < num_ranks() && epoch != 0; ++peer) {
    if (peer == rank || processes_[peer].epoch != epoch || random_.OneIn(2)) continue;
    AtProcess(peer, ArrivalTime(peer), [this, peer, epoch] {
      if (processes_[peer].epoch != epoch) return;
      CloseAtRank(peer, absl::UnavailableError("a peer is gone"));
      EndEpoch(peer);
    });
  }
  const bool lived_long = queue_->now() - process.started > kLongLife;
  process.backoff = lived_long || process.backoff == absl::ZeroDuration()
                        ? kMinBackoff
                        : std::min(process.backoff * 2, kMaxBackoff);
  queue_->After(process.backoff, [this, rank] { Start(rank); });
}

void RankFleet::Replace(uint32_t rank) { Kill(rank, "its supervisor"); }

void RankFleet::Thaw(uint32_t rank) {
  Process& process = processes_[rank];
  process.is_frozen = false;
  for (const std::function<void()>& handler : std::exchange(process.backlog, {})) handler();
  if (process.joining != 0) TryToMeet(rank);
  Advance();
}

void RankFleet::Freeze(uint32_t rank, absl::Duration duration) {
  Process& process = processes_[rank];
  if (!process.is_alive || process.is_frozen) return;
  report_->Note(queue_->now(), "rank ", rank, " is frozen");
  process.is_frozen = true;
  const auto still_frozen = [this, rank, instance = process.instance] {
    const Process& now = processes_[rank];
    return now.is_alive && now.is_frozen && now.instance == instance;
  };
  if (duration != absl::InfiniteDuration()) {
    queue_->After(duration, [=, this] {
      if (still_frozen()) Thaw(rank);
    });
  }
  queue_->After(kKeepalive, [=, this] {
    if (still_frozen()) LoseContact(rank);
  });
}

void RankFleet::Cut(uint32_t rank, absl::Duration duration) {
  links_[rank].cut_until = queue_->now() + duration;
  if (duration <= kKeepalive) return;
  queue_->After(kKeepalive, [this, rank] {
    if (is_cut(rank)) LoseContact(rank);
  });
}

// Pings are not answered: to both sides the connection is gone.
void RankFleet::LoseContact(uint32_t rank) {
  const absl::Status silent = absl::UnavailableError("keepalive: no answer");
  const uint64_t stream = std::exchange(links_[rank].stream, 0);
  if (stream != 0) {
    PostNow(router::StreamClosed{rank, links_[rank].stream_epoch, silent});
    AtProcess(rank, queue_->now() + Milliseconds(1),
              [this, rank, stream] { HandleStreamEnd(rank, stream); });
  }
  FailCallsOf(rank, next_id_, silent);
}

void RankFleet::Apply(const Fault& fault) {
  Process& process = processes_[fault.rank];
  // Slow steps may miss their deadline again and again.
  num_disturbances_ += fault.kind == Fault::Kind::kSlow ? 10 : 1;
  switch (fault.kind) {
    case Fault::Kind::kImpostor:
      // One at a time: a new router would take the word of all for what the model is.
      process.comes_back_as_impostor =
          num_ranks() > 1 &&
          std::none_of(processes_.begin(), processes_.end(),
                       [](const Process& p) { return p.is_impostor || p.comes_back_as_impostor; });
      return Kill(fault.rank, "an impostor");
    case Fault::Kind::kKill:
      return Kill(fault.rank, "the scenario");
    case Fault::Kind::kFreeze:
      return Freeze(fault.rank, fault.duration);
    case Fault::Kind::kSlow:
      process.slow_until = queue_->now() + fault.duration;
      return;
    case Fault::Kind::kCut:
      return Cut(fault.rank, fault.duration);
    case Fault::Kind::kRefuseJoin:
      process.refuses_join = true;
      return;
    case Fault::Kind::kWrongStateHash:
    case Fault::Kind::kWrongTokens:
    case Fault::Kind::kWrongStep:
      process.lie = fault.kind;
      return;
    case Fault::Kind::kRouterCrash:
    case Fault::Kind::kDrain:
      return;  // the router's
  }
}

}  // namespace shoal::simulation
