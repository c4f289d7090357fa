#include "tests/simulation/client_ledger.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/router_control/puppet_rank.h"

namespace shoal::simulation {
namespace {

using router::Event;
using router::FinishReason;
using router::PuppetRank;

// A terminal status by the deadline and this.
constexpr absl::Duration kDeadlineGrace = absl::Milliseconds(50);

}  // namespace

ClientLedger::ClientLedger(const Scenario* scenario, Report* report)
    : scenario_(*scenario), report_(report) {
  for (const ClientPlan& client : scenario_.clients) {
    for (uint32_t choice = 0; choice < client.num_choices; ++choice) {
      Stream& stream = streams_[{client.number, choice}];
      stream.client = &client;
      stream.request = client.request;
      stream.request.sampling.choice = choice;
      stream.solo = PuppetRank::Solo(stream.request);
    }
  }
}

std::vector<Stream*> ClientLedger::of(const ClientPlan& client) {
  std::vector<Stream*> streams;
  for (uint32_t choice = 0; choice < client.num_choices; ++choice) {
    streams.push_back(of(client.number, choice));
  }
  return streams;
}

Stream* ClientLedger::Find(uint64_t id) {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

template <typename... Words>
void ClientLedger::Violation(const Stream& stream, const Words&... words) {
  report_->Violation(absl::StrCat(words..., " (client ", stream.client->number, ", choice ",
                                  stream.request.sampling.choice, ", ", stream.tokens.size(),
                                  " of ", stream.solo.size(), " tokens)"));
}

void ClientLedger::OnAccepted(absl::Time now, Stream* stream, uint64_t id) {
  report_->tally().num_resumed += stream->tokens.empty() ? 0 : 1;
  stream->id = id;
  stream->arrival = now;
  stream->num_prompt_logprobs = 0;
  stream->num_committed = stream->tokens.size();
  stream->was_started = false;
  stream->is_cancelled = false;
  stream->num_losses = 0;
  by_id_[id] = stream;
}

void ClientLedger::OnRefused(const ClientPlan& client, const absl::Status& status, bool is_ready,
                             size_t num_live) {
  const Stream& stream = *of(client.number, 0);
  const router::SchedulerOptions& limits = scenario_.options.scheduler;
  const size_t room = size_t{limits.max_queued_requests} + limits.max_batch_seqs;
  const bool is_just =
      (absl::IsUnavailable(status) && !is_ready) ||
      (absl::IsResourceExhausted(status) && num_live + client.num_choices > room) ||
      (absl::IsResourceExhausted(status) && stream.deadline != absl::InfiniteFuture() &&
       absl::StrContains(status.message(), "the first token would come")) ||
      (absl::IsDeadlineExceeded(status) && stream.deadline != absl::InfiniteFuture());
  if (!is_just) Violation(stream, "refusal: without cause: ", status.ToString());
}

void ClientLedger::End(Stream* stream, absl::string_view why) {
  if (stream->has_ended) return;
  stream->has_ended = true;
  stream->end = std::string(why);
  Detach(stream);
}

void ClientLedger::Detach(Stream* stream) {
  by_id_.erase(stream->id);
  stream->id = 0;
}

size_t ClientLedger::num_live() const { return by_id_.size(); }

void ClientLedger::OnEvent(absl::Time now, const Event& event, bool may_be_unavailable) {
  Stream* stream = Find(event.request_id);
  if (stream == nullptr) {
    report_->Violation(absl::StrCat("terminal: an event for request ", event.request_id,
                                    ", which has ended or was never accepted"));
    return;
  }
  switch (event.kind) {
    case Event::Kind::kPromptLogprobs:
      TakePromptLogprobs(stream, event);
      return;
    case Event::Kind::kTokens:
      stream->tokens.insert(stream->tokens.end(), event.token_ids.begin(), event.token_ids.end());
      CheckTokens(*stream, event);
      return;
    case Event::Kind::kFinished:
      if (event.outcome.reason == FinishReason::kStopToken) {
        stream->tokens.push_back(event.outcome.stop_token_id);
        CheckTokens(*stream, event);
      }
      CheckEnd(now, *stream, event.outcome, may_be_unavailable);
      End(stream, event.outcome.status.ok() ? "finished" : event.outcome.status.ToString());
      return;
  }
}

void ClientLedger::CheckTokens(const Stream& stream, const Event& event) {
  if (stream.tokens.size() > stream.solo.size() ||
      !std::equal(stream.tokens.begin(), stream.tokens.end(), stream.solo.begin())) {
    Violation(stream, "tokens: not those of an undisturbed run");
  }
  if (stream.tokens.size() > stream.num_committed) {
    Violation(stream, "commit: a token whose step not every rank has answered");
  }
  const bool wants_logprobs = stream.request.sampling.top_logprobs >= 0;
  const auto& logprobs =
      event.kind == Event::Kind::kTokens ? event.logprobs : event.outcome.stop_token_logprobs;
  const size_t num_tokens = event.kind == Event::Kind::kTokens ? event.token_ids.size() : 1;
  if (logprobs.size() != (wants_logprobs ? num_tokens : 0)) {
    Violation(stream, "tokens: ", logprobs.size(), " logprobs for ", num_tokens);
  }
}

void ClientLedger::TakePromptLogprobs(Stream* stream, const Event& event) {
  const std::vector<uint32_t>& prompt = stream->request.token_ids;
  for (const router::PositionLogprobs& logprob : event.logprobs) {
    const size_t position = ++stream->num_prompt_logprobs;
    if (position >= prompt.size() || !stream->request.sampling.prompt_logprobs ||
        logprob.chosen.token_id != prompt[position] ||
        logprob.chosen.logprob !=
            PuppetRank::Logprob(absl::MakeConstSpan(prompt).subspan(0, position),
                                prompt[position])) {
      Violation(*stream, "tokens: a wrong prompt logprob at ", position);
      return;
    }
  }
}

void ClientLedger::CheckEnd(absl::Time now, const Stream& stream, const router::Outcome& outcome,
                            bool may_be_unavailable) {
  if (outcome.num_generated_tokens != stream.tokens.size()) {
    Violation(stream, "terminal: it says ", outcome.num_generated_tokens, " generated tokens");
  }
  if (outcome.num_preemptions > router::Scheduler::kMaxPreemptions) {
    Violation(stream, "order: ", outcome.num_preemptions, " preemptions");
  }
  switch (outcome.reason) {
    case FinishReason::kStopToken:
    case FinishReason::kLength: {
      if (!outcome.status.ok()) Violation(stream, "terminal: ", outcome.status.ToString());
      if (stream.tokens != stream.solo) Violation(stream, "tokens: it ended too early");
      const bool wants_logprobs = stream.request.sampling.prompt_logprobs;
      if (wants_logprobs && stream.num_prompt_logprobs + 1 != stream.request.token_ids.size()) {
        Violation(stream, "tokens: only ", stream.num_prompt_logprobs, " prompt logprobs");
      }
      return;
    }
    case FinishReason::kCancelled:
      ++report_->tally().num_cancelled;
      if (!stream.is_cancelled) Violation(stream, "terminal: cancelled by nobody");
      return;
    case FinishReason::kDeadline:
      ++report_->tally().num_late;
      if (now < stream.deadline) Violation(stream, "deadline: ended before it");
      return;
    case FinishReason::kError:
      break;
  }
  if (absl::IsUnavailable(outcome.status) && may_be_unavailable) {
    ++report_->tally().num_unavailable;
    return;
  }
  if (absl::IsInternal(outcome.status) && stream.client->fails) return;
  if (absl::IsInternal(outcome.status) && stream.num_losses >= 3 && stream.was_lost_alone) {
    ++report_->tally().num_poisoned;
    return;
  }
  Violation(stream, "terminal: an error without cause: ", outcome.status.ToString());
}

void ClientLedger::OnLoss(const std::vector<Stream*>& lost) {
  for (const auto& [id, stream] : by_id_) {
    if (std::find(lost.begin(), lost.end(), stream) != lost.end()) {
      ++stream->num_losses;
      stream->was_lost_alone = lost.size() == 1;
    } else if (stream->num_losses < 2) {
      stream->num_losses = 0;
    }
  }
}

// Whether another stream that runs may be computing its first block.
bool ClientLedger::MayWaitForPrefix(const Stream& stream) const {
  const auto first_block = [this](const Stream& of) {
    std::vector<uint32_t> log = of.request.token_ids;
    log.insert(log.end(), of.solo.begin(), of.solo.end());
    const uint32_t block_size = scenario_.options.scheduler.block_size;
    log.resize(std::min<size_t>(log.size(), block_size));
    return log;
  };
  return std::any_of(by_id_.begin(), by_id_.end(), [&](const auto& entry) {
    const Stream& other = *entry.second;
    return &other != &stream && other.was_started &&
           other.request.cache_salt == stream.request.cache_salt &&
           first_block(other) == first_block(stream);
  });
}

// A priority is worth one aging interval, so nobody who came three later and was not preempted
// goes ahead of one that waits.
void ClientLedger::CheckOrder(const Stream& started) {
  const auto is_suspect = [](const auto& entry) { return entry.second->num_losses >= 2; };
  if (started.was_started || std::any_of(by_id_.begin(), by_id_.end(), is_suspect)) return;
  const absl::Duration margin = 3 * scenario_.options.scheduler.aging_interval;
  for (const auto& [id, waiting] : by_id_) {
    if (waiting->was_started || waiting->arrival + margin > started.arrival) continue;
    if (MayWaitForPrefix(*waiting)) continue;
    Violation(*waiting, "order: overtaken by client ", started.client->number, ", which came ",
              absl::FormatDuration(started.arrival - waiting->arrival), " later");
  }
}

void ClientLedger::CheckDeadlines(absl::Time now) {
  for (const auto& [id, stream] : by_id_) {
    if (stream->deadline + kDeadlineGrace < now) {
      Violation(*stream, "deadline: passed ", absl::FormatDuration(now - stream->deadline), " ago");
    }
  }
}

void ClientLedger::CheckAllEnded() {
  for (const auto& [key, stream] : streams_) {
    if (!stream.has_ended) Violation(stream, "terminal: it never ended");
  }
}

}  // namespace shoal::simulation
