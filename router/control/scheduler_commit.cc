// How the Scheduler takes in the result of a plan; scheduler.cc has the requests.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "router/control/scheduler.h"

namespace shoal::router {
namespace {

bool Contains(const std::vector<uint32_t>& ids, uint32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

absl::Status Scheduler::CheckResult(const InFlight& step, const StepResult& result) const {
  if (result.step != step.step) {
    return absl::InternalError(
        absl::StrCat("a result of step ", result.step, " while step ", step.step, " runs"));
  }
  if (result.outputs.size() != step.rows.size()) {
    return absl::InternalError(absl::StrCat("step ", result.step, " has ", result.outputs.size(),
                                            " outputs for ", step.rows.size(), " rows"));
  }
  for (size_t i = 0; i < result.outputs.size(); ++i) {
    const RowOutput& output = result.outputs[i];
    const PlannedRow& row = step.rows[i];
    if (output.slot != row.sequence->slot) {
      return absl::InternalError(absl::StrCat("output ", i, " of step ", result.step,
                                              " is of slot ", output.slot, ", not ",
                                              row.sequence->slot));
    }
    if (!output.error.empty()) continue;
    const size_t num_tokens = row.samples ? 1 : 0;
    const size_t num_logprobs = row.sequence->request.sampling.top_logprobs >= 0 ? num_tokens : 0;
    if (output.token_ids.size() != num_tokens || output.logprobs.size() != num_logprobs ||
        output.prompt_logprobs.size() != row.num_prompt_logprobs) {
      return absl::InternalError(
          absl::StrCat("slot ", output.slot, " of step ", result.step, " put out ",
                       output.token_ids.size(), "+", output.logprobs.size(), "+",
                       output.prompt_logprobs.size(), " tokens+logprobs+prompt logprobs, not ",
                       num_tokens, "+", num_logprobs, "+", row.num_prompt_logprobs));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Event>> Scheduler::CommitStep(absl::Time now, const StepResult& result) {
  CHECK(!in_flight_.empty()) << "no plan is with the ranks";
  SHOAL_RETURN_IF_ERROR(CheckResult(in_flight_.front(), result));
  const InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  last_progress_ = now;
  is_stalled_ = false;
  std::vector<Event> events;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    CommitRow(now, step.rows[i], result.outputs[i], &events);
  }
  std::erase_if(ended_, [this](const std::unique_ptr<Sequence>& sequence) {
    if (sequence->num_in_flight > 0) return false;
    Vacate(sequence.get());
    return true;
  });
  return events;
}

void Scheduler::CommitRow(absl::Time now, const PlannedRow& row, const RowOutput& output,
                          std::vector<Event>* events) {
  Sequence* sequence = row.sequence;
  --sequence->num_in_flight;
  if (sequence->has_failed) return;
  if (!output.error.empty()) {
    // What the row wrote is not to be trusted: nothing of it goes to the cache.
    sequence->has_failed = true;
    if (sequence->state == Sequence::State::kEnded) return;
    EndWithEvent(now, sequence,
                 {.reason = FinishReason::kError, .status = absl::InternalError(output.error)},
                 events);
    return;
  }
  const uint32_t first = sequence->num_computed;
  sequence->num_computed += row.num_tokens;
  // The log of a sequence that ended ends there, and a row planned ahead may go past it.
  sequence->table.Commit(sequence->log(), std::min(sequence->num_computed, sequence->log_size()));
  if (sequence->state == Sequence::State::kEnded) return;
  if (sequence->is_suspect() && sequence->num_computed >= sequence->trial_until) {
    sequence->num_losses = 0;
    --num_suspects_;
  }
  if (row.num_prompt_logprobs > 0) DeliverPromptLogprobs(now, sequence, first, output, events);
  if (sequence->num_computed < sequence->log_size()) return;
  sequence->inherited_key.reset();
  if (sequence->request.max_tokens == 0) {
    EndWithEvent(now, sequence, {.reason = FinishReason::kLength}, events);
  } else {
    AcceptToken(now, sequence, output, events);
  }
}

// `first` is the position of the row's first token. A replayed row may start with positions whose
// logprobs are delivered already.
void Scheduler::DeliverPromptLogprobs(absl::Time now, Sequence* sequence, uint32_t first,
                                      const RowOutput& output, std::vector<Event>* events) {
  Event event = MakeEvent(now, Event::Kind::kPromptLogprobs, *sequence);
  event.logprobs.assign(output.prompt_logprobs.begin() + (sequence->num_prompt_logprobs - first),
                        output.prompt_logprobs.end());
  sequence->num_prompt_logprobs += static_cast<uint32_t>(event.logprobs.size());
  events->push_back(std::move(event));
}

void Scheduler::AcceptToken(absl::Time now, Sequence* sequence, const RowOutput& output,
                            std::vector<Event>* events) {
  const Request& request = sequence->request;
  const uint32_t token = output.token_ids.front();
  sequence->log().push_back(token);
  if (sequence->first_token == absl::InfiniteFuture()) sequence->first_token = now;
  const bool is_end = (!request.ignore_eos && Contains(request.eos_ids, token)) ||
                      Contains(request.stop_token_ids, token);
  if (is_end && sequence->num_generated() > request.sampling.min_tokens) {
    EndWithEvent(now, sequence,
                 {.reason = FinishReason::kStopToken,
                  .stop_token_id = token,
                  .stop_token_logprobs = output.logprobs},
                 events);
    return;
  }
  Event event = MakeEvent(now, Event::Kind::kTokens, *sequence);
  event.token_ids = {token};
  event.logprobs = output.logprobs;
  events->push_back(std::move(event));
  if (sequence->num_generated() >= request.max_tokens) {
    EndWithEvent(now, sequence, {.reason = FinishReason::kLength}, events);
  }
}

}  // namespace shoal::router
