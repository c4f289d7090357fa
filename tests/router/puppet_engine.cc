#include "tests/router/puppet_engine.h"

#include <utility>

#include "glog/logging.h"
#include "shoal/v1/admin.pb.h"

namespace shoal::router {

void PuppetEngine::SetModel(std::shared_ptr<const ServedModel> model) {
  base::MutexLock lock(&mutex_);
  model_ = std::move(model);
}

void PuppetEngine::SetReadiness(absl::Status readiness) {
  base::MutexLock lock(&mutex_);
  readiness_ = std::move(readiness);
}

void PuppetEngine::SetAdmission(absl::Status admission, int times) {
  base::MutexLock lock(&mutex_);
  num_admissions_left_ = times;
  admission_ = std::move(admission);
}

std::vector<Request> PuppetEngine::WaitForSubmission(size_t index) {
  base::MutexLock lock(&mutex_);
  while (submissions_.size() <= index) changed_.Wait(&mutex_);
  return submissions_[index].sequences;
}

std::vector<uint64_t> PuppetEngine::WaitForCancels(size_t count) {
  base::MutexLock lock(&mutex_);
  while (cancelled_.size() < count) changed_.Wait(&mutex_);
  return cancelled_;
}

std::vector<uint64_t> PuppetEngine::finished() const {
  base::MutexLock lock(&mutex_);
  return finished_;
}

size_t PuppetEngine::num_cancels() const {
  base::MutexLock lock(&mutex_);
  return cancelled_.size();
}

size_t PuppetEngine::num_submissions() const {
  base::MutexLock lock(&mutex_);
  return submissions_.size();
}

void PuppetEngine::Emit(uint64_t id, Event event) {
  event.request_id = id;
  event.outcome.admitted = absl::Milliseconds(1);
  event.outcome.first_token = absl::Milliseconds(2);
  event.outcome.finished = absl::Milliseconds(3);
  std::shared_ptr<SequenceSink> sink;
  {
    base::MutexLock lock(&mutex_);
    for (const Submission& submission : submissions_) {
      for (const Request& sequence : submission.sequences) {
        if (sequence.id == id) sink = submission.sink;
      }
    }
  }
  CHECK(sink != nullptr) << "no sequence " << id;
  sink->OnEvent(event);
}

void PuppetEngine::Generate(uint64_t id, const std::string& text) {
  GenerateTokens(id, ByteTokens(text));
}

void PuppetEngine::GenerateTokens(uint64_t id, std::vector<uint32_t> ids) {
  for (const uint32_t token : ids) {
    Event event;
    event.kind = Event::Kind::kTokens;
    event.token_ids = {token};
    Emit(id, std::move(event));
  }
}

void PuppetEngine::EndAtToken(uint64_t id, uint32_t token) {
  Event event;
  event.kind = Event::Kind::kFinished;
  event.outcome.reason = FinishReason::kStopToken;
  event.outcome.stop_token_id = token;
  Emit(id, std::move(event));
}

void PuppetEngine::EndAtLength(uint64_t id) {
  Event event;
  event.kind = Event::Kind::kFinished;
  Emit(id, std::move(event));
}

void PuppetEngine::Fail(uint64_t id, const absl::Status& status, FinishReason reason) {
  Event event;
  event.kind = Event::Kind::kFinished;
  event.outcome.reason = reason;
  event.outcome.status = status;
  Emit(id, std::move(event));
}

std::shared_ptr<const ServedModel> PuppetEngine::model() const {
  base::MutexLock lock(&mutex_);
  return model_;
}

absl::Status PuppetEngine::Readiness() const {
  base::MutexLock lock(&mutex_);
  return readiness_;
}

uint64_t PuppetEngine::AllocateIds(uint32_t count) {
  base::MutexLock lock(&mutex_);
  return std::exchange(next_id_, next_id_ + count);
}

void PuppetEngine::Submit(std::vector<Request> sequences, std::shared_ptr<SequenceSink> sink) {
  absl::Status admission;
  {
    base::MutexLock lock(&mutex_);
    if (num_admissions_left_ > 0) {
      --num_admissions_left_;
      admission = admission_;
    }
  }
  sink->OnAdmission(admission);
  base::MutexLock lock(&mutex_);
  submissions_.push_back({std::move(sequences), std::move(sink)});
  changed_.SignalAll();
}

void PuppetEngine::Cancel(uint64_t id, absl::string_view reason) {
  base::MutexLock lock(&mutex_);
  cancelled_.push_back(id);
  changed_.SignalAll();
}

void PuppetEngine::Finish(uint64_t id) {
  base::MutexLock lock(&mutex_);
  finished_.push_back(id);
  changed_.SignalAll();
}

uint64_t PuppetEngine::TraceSteps(uint32_t num_steps, absl::Duration timeout, TraceDone done) {
  if (num_steps > 10) {
    base::MutexLock lock(&mutex_);
    trace_done_ = std::move(done);
    return 7;
  }
  v1::TraceStepsResponse response;
  v1::ProcessTrace* process = response.add_processes();
  process->set_process("router");
  process->add_span_names("plan");
  process->add_spans()->set_step(num_steps);
  done(absl::OkStatus(), &response);
  return 0;
}

void PuppetEngine::AbandonTrace(uint64_t id) {
  TraceDone done;
  {
    base::MutexLock lock(&mutex_);
    CHECK_EQ(id, 7u);
    done = std::exchange(trace_done_, nullptr);
    cancelled_.push_back(id);
    changed_.SignalAll();
  }
  if (done) done(absl::CancelledError("abandoned"), nullptr);
}

EngineStatus PuppetEngine::status() const { return status_; }

}  // namespace shoal::router
