#include "router/recorded_control.h"

#include <utility>

#include "router/history_codec.h"

namespace shoal::router {

RecordedControl::RecordedControl(const GroupControlOptions& options,
                                 std::unique_ptr<HistoryRecorder> recorder)
    : control_(options), recorder_(std::move(recorder)) {}

// Returns the call's time.
absl::Time RecordedControl::Begin(absl::Time now) {
  const int64_t time_ns = absl::ToUnixNanos(now);
  if (recorder_ != nullptr) {
    record_.Clear();
    record_.set_time_ns(time_ns);
  }
  return absl::FromUnixNanos(time_ns);
}

void RecordedControl::End() {
  for (ControlAction& action : control_.TakeActions()) actions_.push_back(std::move(action));
  if (recorder_ != nullptr) recorder_->Write(record_);
}

void RecordedControl::Flush() {
  if (recorder_ != nullptr) recorder_->Flush();
}

void RecordedControl::Start(absl::Time now) {
  now = Begin(now);
  if (recorder_ != nullptr) record_.mutable_start();
  control_.Start(now);
  End();
}

absl::Status RecordedControl::Submit(absl::Time now, std::vector<Request> sequences) {
  now = Begin(now);
  for (Request& sequence : sequences) {
    sequence.arrival = absl::FromUnixNanos(absl::ToUnixNanos(sequence.arrival));
    if (sequence.deadline != absl::InfiniteFuture()) {
      sequence.deadline = absl::FromUnixNanos(absl::ToUnixNanos(sequence.deadline));
    }
    if (recorder_ != nullptr) ToProto(sequence, record_.mutable_submission()->add_sequences());
  }
  absl::Status status = control_.Submit(now, std::move(sequences));
  if (recorder_ != nullptr) record_.mutable_submission()->set_code(status.raw_code());
  End();
  return status;
}

void RecordedControl::Cancel(absl::Time now, uint64_t id, absl::string_view reason) {
  now = Begin(now);
  if (recorder_ != nullptr) {
    record_.mutable_cancel()->set_id(id);
    record_.mutable_cancel()->set_reason(std::string(reason));
  }
  control_.Cancel(now, id, reason);
  End();
}

void RecordedControl::Finish(absl::Time now, uint64_t id) {
  Begin(now);
  if (recorder_ != nullptr) record_.set_finish(id);
  control_.Finish(id);
  End();
}

void RecordedControl::FailAll(absl::Time now, const absl::Status& status) {
  now = Begin(now);
  if (recorder_ != nullptr) ToProto(status, record_.mutable_fail_all());
  control_.FailAll(now, status);
  End();
}

void RecordedControl::OnGroupEvent(absl::Time now, const GroupEvent& event) {
  now = Begin(now);
  if (recorder_ != nullptr) ToProto(event, record_.mutable_rank_event());
  control_.OnGroupEvent(now, event);
  End();
}

void RecordedControl::OnTimer(absl::Time now) {
  now = Begin(now);
  if (now < control_.NextDeadline()) return;  // nothing is due
  if (recorder_ != nullptr) record_.mutable_timer();
  control_.OnTimer(now);
  End();
}

bool RecordedControl::Plan(absl::Time now) {
  if (control_.scheduler() == nullptr) return false;
  now = Begin(now);
  if (recorder_ != nullptr) record_.mutable_planning();
  const bool has_planned = control_.Plan(now);
  if (has_planned && recorder_ != nullptr) {
    // The only action of the call.
    std::vector<ControlAction> actions = control_.TakeActions();
    ToProto(std::get<SendStep>(actions.back()), record_.mutable_planning());
    for (ControlAction& action : actions) actions_.push_back(std::move(action));
  }
  End();
  return has_planned;
}

}  // namespace shoal::router
