#include "router/response_builder.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"
#include "router/prompt.h"
#include "router/proto_time.h"

namespace shoal::router {
namespace {

// Memory of one logprob in a message, about.
constexpr size_t kLogprobBytes = 48;

// Leaves unset what is not known.
void SetIfKnown(absl::Duration value, google::protobuf::Duration* out) {
  if (value != absl::InfiniteDuration() && value >= absl::ZeroDuration()) ToProto(value, out);
}

bool Contains(const std::vector<uint32_t>& ids, uint32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

ResponseBuilder::ResponseBuilder(const ServedModel* model, const ValidRequest* request)
    : model_(*model), request_(*request) {
  const text::StreamDecoder::Options options{
      .stop_strings = request_.stop_strings,
      .include_stop_in_output = request_.include_stop_in_output,
      .skip_special_tokens = request_.skip_special_tokens,
      .strip_leading_space = false,  // the tokens continue the prompt
  };
  for (uint32_t i = 0; i < request_.num_choices; ++i) {
    choices_.push_back({.decoder = text::StreamDecoder(model_.tokenizer.get(), options)});
  }
  if (!request_.generated.empty()) {
    Resume(&choices_[0], 0);
  } else if (request_.echo) {
    AddEcho();
  }
}

// The client has the text of its tokens but for what was held back, so the decoder takes them and
// their text is dropped.
void ResponseBuilder::Resume(Choice* choice, uint32_t index) {
  const std::vector<uint32_t>& generated = request_.generated;
  choice->num_tokens = static_cast<uint32_t>(generated.size());
  const uint32_t last = generated.back();
  const bool is_stop_token = (Contains(request_.stop_token_ids, last) ||
                              (!request_.ignore_eos && Contains(model_.eos_ids, last))) &&
                             generated.size() > request_.sampling.min_tokens;
  for (size_t i = 0; i + (is_stop_token ? 1 : 0) < generated.size(); ++i) {
    if (EndAtStopString(index, choice->decoder.Append(generated[i]))) return;
  }
  if (is_stop_token) {
    Delta(index)->set_stop_token_id(last);
    EndChoice(index, v1::FINISH_REASON_STOP_TOKEN);
  } else if (generated.size() >= request_.max_tokens) {
    EndChoice(index, v1::FINISH_REASON_LENGTH);
  }
}

void ResponseBuilder::AddEcho() {
  const std::string text = TextOf(model_, request_.prompt, request_.skip_special_tokens);
  for (uint32_t i = 0; i < choices_.size(); ++i) {
    StartMessageIfFull();
    Delta(i);
    AddText(i, text);
    pending_bytes_.prompt += text.size();
  }
  if (request_.sampling.prompt_logprobs) {
    FillLogprobs({.chosen = {.token_id = request_.prompt[0], .logprob = 0}, .top = {}},
                 Delta(0)->add_prompt_logprobs());
  }
}

bool ResponseBuilder::Add(uint32_t choice, const Event& event) {
  if (is_done(choice)) return false;
  has_started_ = true;
  NoteUsage(event.outcome);
  switch (event.kind) {
    case Event::Kind::kTokens:
      AddTokens(choice, event);
      return is_done(choice);
    case Event::Kind::kPromptLogprobs:
      AddPromptLogprobs(event);
      return false;
    case Event::Kind::kFinished:
      AddFinish(choice, event.outcome);
      return false;
  }
  return false;
}

void ResponseBuilder::AddTokens(uint32_t index, const Event& event) {
  Choice& choice = choices_[index];
  for (size_t i = 0; i < event.token_ids.size() && !choice.is_done; ++i) {
    StartMessageIfFull();
    AddId(index, event.token_ids[i], i < event.logprobs.size() ? &event.logprobs[i] : nullptr);
    const text::StreamDecoder::Delta decoded = choice.decoder.Append(event.token_ids[i]);
    AddText(index, decoded.text);
    EndAtStopString(index, decoded);
  }
}

void ResponseBuilder::AddPromptLogprobs(const Event& event) {
  for (const PositionLogprobs& logprobs : event.logprobs) {
    StartMessageIfFull();
    v1::Choice* delta = Delta(0);
    const size_t before = pending_bytes_.total;
    FillLogprobs(logprobs, delta->add_prompt_logprobs());
    pending_bytes_.prompt += pending_bytes_.total - before;
  }
}

void ResponseBuilder::AddFinish(uint32_t index, const Outcome& outcome) {
  if (outcome.reason != FinishReason::kStopToken) {
    CHECK(outcome.reason == FinishReason::kLength) << "an error is no finish";
    EndChoice(index, v1::FINISH_REASON_LENGTH);
    return;
  }
  const uint32_t id = outcome.stop_token_id;
  AddId(index, id, outcome.stop_token_logprobs.empty() ? nullptr : &outcome.stop_token_logprobs[0]);
  Delta(index)->set_stop_token_id(id);
  if (request_.include_stop_in_output && Contains(request_.stop_token_ids, id)) {
    AddText(index, choices_[index].decoder.Append(id).text);
  }
  EndChoice(index, v1::FINISH_REASON_STOP_TOKEN);
}

void ResponseBuilder::StartMessageIfFull() {
  if (pending_bytes_.total < kFullBytes) return;
  full_bytes_.total += pending_bytes_.total;
  full_bytes_.prompt += pending_bytes_.prompt;
  full_.push_back({.message = std::move(pending_), .bytes = pending_bytes_});
  pending_.Clear();
  pending_bytes_ = {};
  for (Choice& choice : choices_) choice.delta = -1;
}

v1::Choice* ResponseBuilder::Delta(uint32_t index) {
  int& delta = choices_[index].delta;
  if (delta < 0) {
    delta = pending_.deltas_size();
    pending_.add_deltas()->set_index(index);
    pending_bytes_.total += sizeof(v1::Choice);
  }
  return pending_.mutable_deltas(delta);
}

void ResponseBuilder::AddId(uint32_t index, uint32_t id, const PositionLogprobs* logprobs) {
  v1::Choice* delta = Delta(index);
  ++choices_[index].num_tokens;
  if (request_.return_token_ids) {
    delta->add_token_ids(id);
    pending_bytes_.total += sizeof(id);
  }
  if (logprobs != nullptr) FillLogprobs(*logprobs, delta->add_logprobs());
}

void ResponseBuilder::AddText(uint32_t index, const std::string& text) {
  Delta(index)->mutable_text()->append(text);
  pending_bytes_.total += text.size();
}

void ResponseBuilder::EndChoice(uint32_t index, v1::FinishReason reason) {
  Choice& choice = choices_[index];
  const text::StreamDecoder::Delta decoded = choice.decoder.Finish();
  AddText(index, decoded.text);
  if (EndAtStopString(index, decoded)) return;
  Delta(index)->set_finish_reason(reason);
  choice.is_done = true;
  ++num_done_;
}

bool ResponseBuilder::EndAtStopString(uint32_t index, const text::StreamDecoder::Delta& decoded) {
  if (!decoded.matched_stop_string.has_value()) return false;
  Delta(index)->set_finish_reason(v1::FINISH_REASON_STOP_STRING);
  Delta(index)->set_stop_string(request_.stop_strings[*decoded.matched_stop_string]);
  choices_[index].is_done = true;
  ++num_done_;
  return true;
}

void ResponseBuilder::FillLogprobs(const PositionLogprobs& logprobs, v1::PositionLogprobs* out) {
  const auto fill = [this](const TokenLogprob& from, v1::TokenLogprob* to) {
    to->set_token_id(from.token_id);
    to->set_token_bytes(model_.tokenizer->TokenBytes(static_cast<int32_t>(from.token_id)));
    to->set_logprob(from.logprob);
    pending_bytes_.total += kLogprobBytes + to->token_bytes().size();
  };
  fill(logprobs.chosen, out->mutable_chosen());
  for (const TokenLogprob& top : logprobs.top) fill(top, out->add_top());
}

void ResponseBuilder::NoteUsage(const Outcome& outcome) {
  num_cached_tokens_ = std::max(num_cached_tokens_, outcome.num_cached_tokens);
  admitted_ = std::min(admitted_, outcome.admitted);
  first_token_ = std::min(first_token_, outcome.first_token);
  finished_ = std::max(finished_, outcome.finished);
}

uint32_t ResponseBuilder::num_generated_tokens() const {
  uint32_t count = 0;
  for (const Choice& choice : choices_) count += choice.num_tokens;
  return count;
}

void ResponseBuilder::FillUsage(v1::Usage* usage) const {
  usage->set_prompt_tokens(static_cast<uint32_t>(request_.prompt.size()));
  usage->set_completion_tokens(num_generated_tokens());
  usage->set_cached_prompt_tokens(num_cached_tokens_);
}

void ResponseBuilder::FillTimings(v1::Timings* timings) const {
  SetIfKnown(admitted_, timings->mutable_queue());
  SetIfKnown(first_token_, timings->mutable_time_to_first_token());
  if (first_token_ != absl::InfiniteDuration()) {
    SetIfKnown(first_token_ - admitted_, timings->mutable_prefill());
    SetIfKnown(finished_ - first_token_, timings->mutable_decode());
  } else if (admitted_ != absl::InfiniteDuration()) {
    SetIfKnown(finished_ - admitted_, timings->mutable_prefill());
  }
}

v1::GenerateStreamResponse ResponseBuilder::Take() {
  v1::GenerateStreamResponse message;
  if (!full_.empty()) {
    message.Swap(&full_.front().message);
    full_bytes_.total -= full_.front().bytes.total;
    full_bytes_.prompt -= full_.front().bytes.prompt;
    full_.pop_front();
  } else {
    message.Swap(&pending_);
    pending_bytes_ = {};
    for (Choice& choice : choices_) choice.delta = -1;
  }
  const bool is_last = all_done() && !has_pending();
  message.set_request_id(request_.request_id);
  message.set_model(model_.name);
  if (!has_sent_) {
    message.set_seed(request_.sampling.seed);
    message.set_numerics_id(model_.numerics_id);
  }
  if (!has_sent_ || is_last) FillUsage(message.mutable_usage());
  if (is_last) FillTimings(message.mutable_timings());
  has_sent_ = true;
  return message;
}

void Collect(v1::GenerateStreamResponse* message, v1::GenerateResponse* response) {
  if (message->has_seed()) {
    response->set_request_id(std::move(*message->mutable_request_id()));
    response->set_model(std::move(*message->mutable_model()));
    response->set_seed(message->seed());
    response->set_numerics_id(std::move(*message->mutable_numerics_id()));
  }
  if (message->has_usage()) response->mutable_usage()->Swap(message->mutable_usage());
  if (message->has_timings()) response->mutable_timings()->Swap(message->mutable_timings());
  for (v1::Choice& delta : *message->mutable_deltas()) {
    while (response->choices_size() <= static_cast<int>(delta.index())) {
      response->add_choices()->set_index(response->choices_size() - 1);
    }
    v1::Choice* choice = response->mutable_choices(static_cast<int>(delta.index()));
    choice->mutable_text()->append(delta.text());
    delta.clear_text();  // MergeFrom replaces strings that are not empty, and appends lists
    choice->MergeFrom(delta);
  }
}

}  // namespace shoal::router
