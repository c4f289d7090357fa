#include "tests/simulation/simulation.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace shoal::simulation {
namespace {

using absl::Milliseconds;

constexpr int kMaxTries = 100;
constexpr size_t kMaxUnread = 8;  // tokens; more of a slow reader's and the edge cancels
constexpr uint64_t kMaxEvents = 1000000;
constexpr absl::Duration kMaxTime = absl::Hours(1);

}  // namespace

Simulation::Simulation(const Scenario& scenario, bool tells_history)
    : scenario_(scenario),
      report_(tells_history),
      queue_(scenario.seed, absl::UnixEpoch()),
      ledger_(&scenario_, &report_),
      fleet_(&scenario_, &queue_, &report_) {
  for (const ClientPlan& client : scenario_.clients) {
    client_randoms_.emplace(client.number, Random(scenario_.seed, 3000 + client.number));
    queue_.After(client.arrival, [this, &client] { Arrive(client); });
  }
  for (const Fault& fault : scenario_.faults) {
    queue_.After(fault.time, [this, &fault] { Apply(fault); });
  }
}

bool Simulation::Run() {
  StartRouter();
  while (!report_.failed() && queue_.RunNext()) {
    if (queue_.num_run() > kMaxEvents || queue_.now() > absl::UnixEpoch() + kMaxTime) {
      report_.Violation("idle: it does not come to rest");
    }
  }
  if (!report_.failed()) CheckEnd();
  router_.reset();
  Tally& tally = report_.tally();
  tally.num_simulations = 1;
  tally.num_events = queue_.num_run();
  tally.num_streams = ledger_.streams().size();
  for (const auto& [key, stream] : ledger_.streams()) {
    tally.num_complete += stream.tokens == stream.solo;
  }
  return !report_.failed();
}

void Simulation::CheckEnd() {
  ledger_.CheckAllEnded();
  if (!fleet_.is_calm()) report_.Violation("idle: a rank or a call is left over");
  if (router_ != nullptr) router_->CheckIdle();
}

// --- Routers ---

void Simulation::StartRouter() {
  report_.Note(queue_.now(), "a router starts");
  router_ = std::make_unique<SimulatedRouter>(
      &scenario_, &queue_, &fleet_, &ledger_, &report_, ++num_routers_,
      SimulatedRouter::Callbacks{
          .on_refused = [this](const ClientPlan& client,
                               const absl::Status& status) { OnRefused(client, status); },
          .on_tokens = [this](Stream* stream) { OnTokens(stream); }});
}

// Its streams break; clients go to the next router with what they have.
void Simulation::CrashRouter() {
  if (router_ == nullptr || is_draining_) return;
  report_.Note(queue_.now(), "the router is killed");
  for (const ClientPlan& client : scenario_.clients) {
    bool resumes = router_->has_pending(client);
    for (Stream* stream : ledger_.of(client)) {
      if (stream->id == 0) continue;
      ledger_.Detach(stream);
      resumes = true;
    }
    if (!resumes) continue;
    queue_.After(random_of(client).Between(Milliseconds(1), Milliseconds(300)),
                 [this, &client] { Submit(client); });
  }
  router_.reset();
  queue_.After(Milliseconds(100), [this] { StartRouter(); });
}

void Simulation::Apply(const Fault& fault) {
  switch (fault.kind) {
    case Fault::Kind::kRouterCrash:
      return CrashRouter();
    case Fault::Kind::kDrain:
      report_.Note(queue_.now(), "the router drains");
      is_draining_ = true;
      queue_.After(fault.duration, [this] {
        if (router_ != nullptr) router_->Stop();
      });
      return;
    default:
      return fleet_.Apply(fault);
  }
}

// --- Clients ---

void Simulation::Arrive(const ClientPlan& client) {
  for (Stream* stream : ledger_.of(client)) {
    stream->deadline = queue_.now() + client.time_limit;
    if (stream->deadline == absl::InfiniteFuture()) continue;
    queue_.At(stream->deadline + Milliseconds(100),
              [this] { ledger_.CheckDeadlines(queue_.now()); });
  }
  if (client.cancels_after != absl::InfiniteDuration()) {
    queue_.After(client.cancels_after, [this, &client] {
      for (Stream* stream : ledger_.of(client)) {
        if (stream->id != 0) {
          router_->Cancel(stream->id);
        } else {
          ledger_.End(stream, "cancelled while no router had it");
        }
      }
    });
  }
  Submit(client);
}

void Simulation::Submit(const ClientPlan& client) {
  if (router_ != nullptr && !is_draining_) return router_->Submit(client);
  OnRefused(client, absl::UnavailableError("no router"));
}

// It comes again after a while, if that makes sense.
void Simulation::OnRefused(const ClientPlan& client, const absl::Status& status) {
  const bool may_retry = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
  if (may_retry && !is_draining_ && ++num_tries_[client.number] < kMaxTries) {
    queue_.After(random_of(client).Between(Milliseconds(10), Milliseconds(150)),
                 [this, &client] { Submit(client); });
    return;
  }
  for (Stream* stream : ledger_.of(client)) {
    if (stream->id == 0) ledger_.End(stream, absl::StrCat("refused: ", status.ToString()));
  }
}

void Simulation::OnTokens(Stream* stream) {
  const ClientPlan& client = *stream->client;
  if (client.stops_after > 0 && stream->tokens.size() == client.stops_after) {
    router_->Finish(stream->id);
  }
  if (client.read_time == absl::ZeroDuration()) return;
  const absl::Time since = reads_since_.try_emplace(stream, queue_.now()).first->second;
  const auto num_read = static_cast<size_t>((queue_.now() - since) / client.read_time);
  if (stream->tokens.size() == num_read + kMaxUnread) router_->Cancel(stream->id);
}

}  // namespace shoal::simulation
