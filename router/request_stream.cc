#include "router/request_stream.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "router/rpc_status.h"

namespace shoal::router {

RequestStream::RequestStream(std::shared_ptr<const ServedModel> model, ValidRequest request,
                             Engine* engine, std::function<void()> wake, Options options)
    : model_(std::move(model)),
      request_(std::move(request)),
      engine_(engine),
      wake_(std::move(wake)),
      options_(options),
      first_id_(engine->AllocateIds(request_.num_choices)),
      builder_(model_.get(), &request_) {}

std::vector<Request> RequestStream::MakeSequences() const {
  std::vector<Request> sequences(request_.num_choices);
  for (uint32_t i = 0; i < request_.num_choices; ++i) {
    Request& sequence = sequences[i];
    sequence.id = first_id_ + i;
    sequence.token_ids = request_.prompt;
    sequence.token_ids.insert(sequence.token_ids.end(), request_.generated.begin(),
                              request_.generated.end());
    sequence.num_prompt_tokens = static_cast<uint32_t>(request_.prompt.size());
    sequence.max_tokens = request_.max_tokens;
    sequence.stop_token_ids = request_.stop_token_ids;
    sequence.eos_ids = model_->eos_ids;
    sequence.ignore_eos = request_.ignore_eos;
    sequence.sampling = request_.sampling;
    sequence.sampling.choice = i;
    // All choices have one prompt; a resumed stream has brought its logprobs before.
    if (i > 0 || !request_.generated.empty()) sequence.sampling.prompt_logprobs = false;
    sequence.priority = request_.priority;
    sequence.deadline = request_.deadline;
    sequence.arrival = request_.arrival;
    sequence.cache_salt = request_.cache_salt;
  }
  return sequences;
}

void RequestStream::Start(std::shared_ptr<Outboxes::Outbox> outbox) {
  {
    base::MutexLock lock(&mutex_);
    CHECK(!is_submitted_) << "started twice";
    outbox_ = std::move(outbox);
    ReportPending();
    if (has_ended_ || builder_.all_done()) return;
    is_submitted_ = true;
  }
  engine_->Submit(MakeSequences(), shared_from_this());
}

RequestStream::Next RequestStream::Poll(v1::GenerateStreamResponse* message) {
  base::MutexLock lock(&mutex_);
  CHECK(!is_waiting_) << "polled before `wake`";
  if (has_ended_) return Next::kEnd;
  if (builder_.has_pending()) {
    *message = builder_.Take();
    ReportPending();
    // With nothing left to come, the next poll ends the stream.
    has_ended_ = builder_.all_done() && !builder_.has_pending();
    if (has_ended_) outbox_ = nullptr;
    return Next::kMessage;
  }
  is_waiting_ = true;
  return Next::kWait;
}

void RequestStream::Cancel(absl::Status why) {
  CHECK(!why.ok());
  Followup followup;
  const std::string reason(why.message());
  {
    base::MutexLock lock(&mutex_);
    if (has_ended_) return;
    End(std::move(why), &followup);
    WakeIfReady(&followup);
  }
  Perform(followup, reason);
}

void RequestStream::OnAdmission(const absl::Status& status) {
  if (status.ok()) return;
  Followup followup;
  {
    base::MutexLock lock(&mutex_);
    if (has_ended_) return;
    is_submitted_ = false;  // the engine has refused them: nothing is to be cancelled
    End(Retryable(status), &followup);
    WakeIfReady(&followup);
  }
  Perform(followup, status.message());
}

void RequestStream::OnEvent(const Event& event) {
  Followup followup;
  {
    base::MutexLock lock(&mutex_);
    if (has_ended_) return;
    const bool is_error = event.kind == Event::Kind::kFinished && !event.outcome.status.ok();
    if (is_error) {
      End(Retryable(event.outcome.status), &followup);
    } else {
      const uint32_t choice = static_cast<uint32_t>(event.request_id - first_id_);
      CHECK_LT(choice, request_.num_choices) << "an event of sequence " << event.request_id;
      followup.finishes = builder_.Add(choice, event);
      followup.sequence = event.request_id;
      EndIfTooSlow(&followup);
      ReportPending();
    }
    WakeIfReady(&followup);
  }
  Perform(followup, "another choice of the request failed");
}

void RequestStream::End(absl::Status status, Followup* followup) {
  has_ended_ = true;
  status_ = std::move(status);
  while (builder_.has_pending()) builder_.Take();  // nobody will get it
  ReportPending();
  outbox_ = nullptr;  // which the engine's sequences may outlive
  followup->cancels = is_submitted_;
}

void RequestStream::ReportPending() {
  if (outbox_ != nullptr) outbox_->SetPending(builder_.pending_bytes());
}

void RequestStream::EndIfTooSlow(Followup* followup) {
  const size_t waiting = builder_.pending_bytes() - builder_.pending_prompt_bytes();
  if (waiting <= options_.max_pending_bytes) return;
  End(absl::ResourceExhaustedError(
          absl::StrCat("the client reads slower than tokens come: ", waiting,
                       " bytes wait for it, the limit is ", options_.max_pending_bytes,
                       "; read faster, or ask for fewer choices or logprobs")),
      followup);
}

void RequestStream::WakeIfReady(Followup* followup) {
  if (!is_waiting_ || (!has_ended_ && !builder_.has_pending())) return;
  is_waiting_ = false;
  followup->wakes = true;
}

void RequestStream::Perform(const Followup& followup, absl::string_view reason) {
  if (followup.cancels) {
    for (uint32_t i = 0; i < request_.num_choices; ++i) engine_->Cancel(first_id_ + i, reason);
  } else if (followup.finishes) {
    engine_->Finish(followup.sequence);
  }
  if (followup.wakes) wake_();
}

absl::Status RequestStream::status() const {
  base::MutexLock lock(&mutex_);
  CHECK(has_ended_);
  return status_;
}

RequestStream::Progress RequestStream::progress() const {
  base::MutexLock lock(&mutex_);
  return {.is_queued = !builder_.has_started(),
          .num_generated_tokens = builder_.num_generated_tokens()};
}

}  // namespace shoal::router
