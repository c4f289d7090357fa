#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/thread/mutex.h"
#include "router/engine.h"
#include "router/frontend.h"
#include "router/outboxes.h"
#include "router/response_builder.h"
#include "router/served_model.h"
#include "shoal/v1/inference.pb.h"

namespace shoal::router {

// One client's request as it runs. Events come from the engine, messages leave through Poll at the
// client's pace; in between lies one message into which all that waits is merged.
//
//   engine --OnEvent--> ResponseBuilder (pending message) --Poll--> gRPC
//
// A client that reads slower than tokens come grows only this message, up to max_pending_bytes;
// then its request ends with RESOURCE_EXHAUSTED. (The echo and logprobs of the prompt, which come
// in a burst, do not count: the prompt bounds them.) It is not paused: everybody else would pay for
// the blocks that a paused sequence holds.
//
// The stream ends exactly once: with OK when every choice has finished, or with the first error;
// what is pending then is dropped (a client resumes with the tokens it has). Thread-safe. Owned by
// the call that serves it and, until its last sequence has ended, by the engine.
class RequestStream final : public SequenceSink,
                            public std::enable_shared_from_this<RequestStream> {
 public:
  struct Options {
    size_t max_pending_bytes = 16 << 20;
  };

  // `wake` is called once after each Poll that returned kWait, when there is more to poll; by any
  // thread, also by one that calls into this stream, but under no lock of it. `engine` outlives the
  // stream.
  RequestStream(std::shared_ptr<const ServedModel> model, ValidRequest request, Engine* engine,
                std::function<void()> wake, Options options);

  // Submits the choices. At most once. `outbox` (null: nobody counts) hears what waits in the
  // pending message.
  void Start(std::shared_ptr<Outboxes::Outbox> outbox = nullptr);

  enum class Next {
    kMessage,  // `message` is to be sent; poll again after that
    kWait,     // nothing now: `wake` will come
    kEnd,      // nothing any more; status() says how it ended
  };
  // The one consumer calls this, and not again before `wake` where it returned kWait.
  Next Poll(v1::GenerateStreamResponse* message);

  // Ends the stream early: the client is gone, an operator or a drain wants so. `why` is not OK. No
  // effect on a stream that has ended.
  void Cancel(absl::Status why);

  // How it ended. REQUIRES: Poll returned kEnd.
  absl::Status status() const;

  const ValidRequest& request() const { return request_; }
  const ServedModel& model() const { return *model_; }

  struct Progress {
    bool is_queued = true;  // no sequence has started
    uint32_t num_generated_tokens = 0;
  };
  Progress progress() const;

  void OnAdmission(const absl::Status& status) override;
  void OnEvent(const Event& event) override;

 private:
  // What is to be done once the lock is released.
  struct Followup {
    bool finishes = false;  // `sequence` ended by a stop string
    uint64_t sequence = 0;
    bool cancels = false;  // all sequences
    bool wakes = false;
  };

  std::vector<Request> MakeSequences() const;
  void ReportPending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(absl::Status status, Followup* followup) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndIfTooSlow(Followup* followup) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeIfReady(Followup* followup) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(const Followup& followup, absl::string_view reason);

  const std::shared_ptr<const ServedModel> model_;
  const ValidRequest request_;
  Engine* const engine_;
  const std::function<void()> wake_;
  const Options options_;
  const uint64_t first_id_;  // of the sequences; choice i has first_id_ + i

  mutable base::Mutex mutex_;
  ResponseBuilder builder_ ABSL_GUARDED_BY(mutex_);
  // Shared with the call that serves the stream.
  std::shared_ptr<Outboxes::Outbox> outbox_ ABSL_GUARDED_BY(mutex_);
  bool is_waiting_ ABSL_GUARDED_BY(mutex_) = false;    // the consumer waits for `wake`
  bool is_submitted_ ABSL_GUARDED_BY(mutex_) = false;  // the engine may know the sequences
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;     // status_ is final
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::router
