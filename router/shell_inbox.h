#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/thread/mutex.h"
#include "router/engine.h"

namespace shoal::router {

// What other threads leave for the thread of a GroupShell, which takes all of it at once between
// two steps. Thread-safe.
class ShellInbox {
 public:
  struct Submission {
    std::vector<Request> sequences;
    std::shared_ptr<SequenceSink> sink;  // shared with the call that serves the client
  };
  struct Ending {
    uint64_t id = 0;
    bool is_cancel = false;  // else the text is complete
    std::string reason;
  };
  struct Contents {
    std::vector<Submission> submissions;
    std::vector<Ending> endings;  // at most two for each sequence that was submitted
    bool stops = false;
  };
  // Beyond this many submissions nobody looks fast enough. Those taken meet the bound of the
  // scheduler's queue.
  static constexpr size_t kMaxSubmissions = 4096;

  // RESOURCE_EXHAUSTED when full; UNAVAILABLE once stopped.
  absl::Status Add(Submission submission) {
    base::MutexLock lock(&mutex_);
    if (contents_.stops) return absl::UnavailableError("the router is shutting down");
    if (contents_.submissions.size() >= kMaxSubmissions) {
      return absl::ResourceExhaustedError(absl::StrCat(
          kMaxSubmissions, " requests wait to be looked at, no more are taken: retry later"));
    }
    contents_.submissions.push_back(std::move(submission));
    return absl::OkStatus();
  }

  void Add(Ending ending) {
    base::MutexLock lock(&mutex_);
    contents_.endings.push_back(std::move(ending));
  }

  void Stop() {
    base::MutexLock lock(&mutex_);
    contents_.stops = true;
  }

  // Empties the box; `stops` stays.
  Contents Take() {
    base::MutexLock lock(&mutex_);
    Contents taken = std::exchange(contents_, Contents());
    contents_.stops = taken.stops;
    return taken;
  }

 private:
  base::Mutex mutex_;
  Contents contents_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::router
