#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "base/thread/mutex.h"
#include "cli/bench_stats.h"
#include "shoal/v1/inference.grpc.pb.h"

namespace shoal::cli {

// Runs the requests of a benchmark on one channel: gRPC's callback API, so that a thousand clients
// need no thousand threads. Used once, by one thread. When a run has returned, nothing holds the
// channel but the caller: gRPC crashes if one of its own threads gives the last channel up.
class BenchClient {
 public:
  struct Options {
    uint32_t num_requests = 0;
    absl::Duration timeout;  // of a request; zero: none
    // Of request `index`; called on any thread.
    std::function<v1::GenerateRequest(uint32_t index)> make_request;
    // At every end of a request and about five times a second. On the caller's thread.
    std::function<void(uint32_t num_done)> on_progress;
  };

  // `stub` outlives this.
  BenchClient(v1::InferenceService::StubInterface* stub, Options options);
  ~BenchClient();

  // `num_clients` clients, each with one request at a time. Returns when all have ended.
  void RunClosedLoop(uint32_t num_clients);
  // Request i starts at arrivals[i], however many run.
  void RunOpenLoop(const std::vector<absl::Duration>& arrivals);

  const std::vector<BenchSample>& samples() const { return samples_; }  // by request

 private:
  class Stream;

  // Starts the next request, if there is one.
  void StartNext() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnStreamDone(uint32_t index, BenchSample sample) ABSL_LOCKS_EXCLUDED(mutex_);
  void WaitForAll() ABSL_LOCKS_EXCLUDED(mutex_);
  void Report() ABSL_LOCKS_EXCLUDED(mutex_);

  v1::InferenceService::StubInterface* const stub_;
  const Options options_;
  bool is_closed_loop_ = false;
  base::Mutex mutex_;
  base::CondVar changed_;
  uint32_t num_started_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t num_done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<BenchSample>
      samples_;  // each written once, by its stream, before num_done_ counts it
};

}  // namespace shoal::cli
