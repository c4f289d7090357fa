#include "cli/bench_client.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "cli/client.h"

namespace shoal::cli {
namespace {

constexpr absl::Duration kProgressPeriod = absl::Milliseconds(200);

absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

// One request. Deletes itself when it is done.
class BenchClient::Stream : public grpc::ClientReadReactor<v1::GenerateStreamResponse> {
 public:
  Stream(BenchClient* client, uint32_t index) : client_(client), index_(index) {
    *request_.mutable_request() = client->options_.make_request(index);
    request_.mutable_request()->set_return_token_ids(true);
    if (client->options_.timeout > absl::ZeroDuration()) {
      context_.set_deadline(absl::ToChronoTime(absl::Now() + client->options_.timeout));
    }
  }

  void Start() {
    start_ = SteadyNow();
    client_->stub_->async()->GenerateStream(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    uint32_t num_tokens = 0;
    for (const v1::Choice& delta : response_.deltas()) num_tokens += delta.token_ids_size();
    if (num_tokens > 0) AddTokens(num_tokens);
    if (response_.has_usage()) {  // the last one counts
      sample_.prompt_tokens = response_.usage().prompt_tokens();
      sample_.cached_tokens = response_.usage().cached_prompt_tokens();
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    sample_.end_to_end = SteadyNow() - start_;
    if (!status.ok()) sample_.error = CodeName(status.error_code());
    BenchClient* const client = client_;
    const uint32_t index = index_;
    BenchSample sample = std::move(sample_);
    delete this;  // first: the context holds the channel, whose last owner must not be this thread
    client->OnStreamDone(index, std::move(sample));
  }

 private:
  void AddTokens(uint32_t num_tokens) {
    const absl::Time now = SteadyNow();
    uint32_t num_gaps = num_tokens;
    if (sample_.output_tokens == 0) {
      sample_.time_to_first_token = now - start_;
      --num_gaps;  // nothing came before the first
      last_ = now;
    }
    sample_.token_gaps.insert(sample_.token_gaps.end(), num_gaps, (now - last_) / num_tokens);
    sample_.output_tokens += num_tokens;
    last_ = now;
  }

  BenchClient* const client_;
  const uint32_t index_;
  grpc::ClientContext context_;
  v1::GenerateStreamRequest request_;
  v1::GenerateStreamResponse response_;
  absl::Time start_;
  absl::Time last_;
  BenchSample sample_;
};

BenchClient::BenchClient(v1::InferenceService::StubInterface* stub, Options options)
    : stub_(stub), options_(std::move(options)), samples_(options_.num_requests) {}

BenchClient::~BenchClient() = default;

void BenchClient::RunClosedLoop(uint32_t num_clients) {
  is_closed_loop_ = true;
  for (uint32_t i = 0; i < std::min(num_clients, options_.num_requests); ++i) StartNext();
  WaitForAll();
}

void BenchClient::RunOpenLoop(const std::vector<absl::Duration>& arrivals) {
  const absl::Time start = SteadyNow();
  for (const absl::Duration arrival : arrivals) {
    while (true) {
      const absl::Duration left = start + arrival - SteadyNow();
      if (left <= absl::ZeroDuration()) break;
      {
        base::MutexLock lock(&mutex_);
        changed_.WaitFor(&mutex_, std::min(left, kProgressPeriod));
      }
      Report();
    }
    StartNext();
  }
  WaitForAll();
}

void BenchClient::StartNext() {
  uint32_t index = 0;
  {
    base::MutexLock lock(&mutex_);
    if (num_started_ == options_.num_requests) return;
    index = num_started_++;
  }
  (new Stream(this, index))->Start();
}

void BenchClient::OnStreamDone(uint32_t index, BenchSample sample) {
  samples_[index] = std::move(sample);
  if (is_closed_loop_) StartNext();
  base::MutexLock lock(&mutex_);
  ++num_done_;
  changed_.Signal();
}

void BenchClient::WaitForAll() {
  while (true) {
    {
      base::MutexLock lock(&mutex_);
      if (num_done_ == options_.num_requests) break;
      changed_.WaitFor(&mutex_, kProgressPeriod);
    }
    Report();
  }
  Report();
}

void BenchClient::Report() {
  if (!options_.on_progress) return;
  uint32_t num_done = 0;
  {
    base::MutexLock lock(&mutex_);
    num_done = num_done_;
  }
  options_.on_progress(num_done);
}

}  // namespace shoal::cli
