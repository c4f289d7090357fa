#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/control/request.h"
#include "tests/simulation/report.h"
#include "tests/simulation/scenario.h"

namespace shoal::simulation {

// One sequence as its client sees it, over all routers that served it.
struct Stream {
  const ClientPlan* client = nullptr;
  router::Request request;     // as it was first submitted
  std::vector<uint32_t> solo;  // what it must generate
  absl::Time deadline = absl::InfiniteFuture();

  std::vector<uint32_t> tokens;  // that came, a stop token included
  bool has_ended = false;
  std::string end;  // in a word

  // At the router that has it now:
  uint64_t id = 0;  // 0: none has it
  absl::Time arrival;
  size_t num_prompt_logprobs = 0;
  size_t num_committed = 0;  // tokens, of all, whose step every rank has answered
  bool was_started = false;
  bool is_cancelled = false;  // the router was told, and has looked
  int num_losses = 0;         // successive ones that had it in an uncommitted plan
  bool was_lost_alone = false;
};

// What every client is owed: knows the one right answer of each stream, and is told all that a
// router says of it. Whatever must not be becomes a violation of the report.
class ClientLedger {
 public:
  ClientLedger(const Scenario* scenario, Report* report);

  Stream* of(uint32_t client, uint32_t choice) { return &streams_.at({client, choice}); }
  std::vector<Stream*> of(const ClientPlan& client);
  Stream* Find(uint64_t id);

  // A router accepted it under this id.
  void OnAccepted(absl::Time now, Stream* stream, uint64_t id);
  // Whether a router may refuse its client with this, of which it knows `num_live` sequences.
  void OnRefused(const ClientPlan& client, const absl::Status& status, bool is_ready,
                 size_t num_live);
  // Its router is gone; another one may have it next.
  void Detach(Stream* stream);
  // Nothing more may be said to it.
  void End(Stream* stream, absl::string_view why);
  void OnEvent(absl::Time now, const router::Event& event, bool may_be_unavailable);

  // `lost`: the streams in uncommitted plans, once each.
  void OnLoss(const std::vector<Stream*>& lost);
  // `started` is admitted: who came much earlier goes first.
  void CheckOrder(const Stream& started);
  void CheckDeadlines(absl::Time now);
  void CheckAllEnded();

  size_t num_live() const;  // that a router has
  const std::map<std::pair<uint32_t, uint32_t>, Stream>& streams() const { return streams_; }

 private:
  template <typename... Words>
  void Violation(const Stream& stream, const Words&... words);
  void CheckTokens(const Stream& stream, const router::Event& event);
  void TakePromptLogprobs(Stream* stream, const router::Event& event);
  void CheckEnd(absl::Time now, const Stream& stream, const router::Outcome& outcome,
                bool may_be_unavailable);
  bool MayWaitForPrefix(const Stream& stream) const;

  const Scenario& scenario_;
  Report* const report_;
  std::map<std::pair<uint32_t, uint32_t>, Stream> streams_;  // by client and choice
  std::map<uint64_t, Stream*> by_id_;                        // that a router has
};

}  // namespace shoal::simulation
