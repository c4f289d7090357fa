#pragma once

#include <memory>
#include <vector>

#include "router/control/group_control.h"
#include "router/history_recorder.h"

namespace shoal::router {

// A GroupControl whose calls are recorded, if there is a recorder. Times are cut to nanoseconds, so
// that a replay has the same. See GroupControl for the calls; the shell's thread.
class RecordedControl {
 public:
  // `recorder` may be null.
  RecordedControl(const GroupControlOptions& options, std::unique_ptr<HistoryRecorder> recorder);

  void Start(absl::Time now);
  absl::Status Submit(absl::Time now, std::vector<Request> sequences);
  void Cancel(absl::Time now, uint64_t id, absl::string_view reason);
  void Finish(absl::Time now, uint64_t id);
  void FailAll(absl::Time now, const absl::Status& status);
  void OnGroupEvent(absl::Time now, const GroupEvent& event);
  void OnTimer(absl::Time now);
  bool Plan(absl::Time now);

  std::vector<ControlAction> TakeActions() { return std::exchange(actions_, {}); }
  std::vector<Event> TakeEvents() { return control_.TakeEvents(); }
  // What was recorded outlives the process from here on.
  void Flush();

  const GroupControl& state() const { return control_; }

 private:
  absl::Time Begin(absl::Time now);
  void End();

  GroupControl control_;
  const std::unique_ptr<HistoryRecorder> recorder_;
  history::v1::Record record_;  // of the call that is under way
  std::vector<ControlAction> actions_;
};

}  // namespace shoal::router
