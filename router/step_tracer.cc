#include "router/step_tracer.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cluster_token.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "router/proto_time.h"
#include "router/rpc_status.h"
#include "shoal/v1/admin.pb.h"
#include "shoal/worker/v1/worker.grpc.pb.h"

namespace shoal::router {
namespace {

constexpr int kMaxTraceBytes = 64 << 20;
// What the ranks' calls may last beyond the trace.
constexpr absl::Duration kGrace = absl::Seconds(5);
constexpr size_t kSpansPerStep = StepTracer::kCommit + 1;
constexpr const char* kNames[] = {"plan", "send", "in flight", "commit", "deliver"};  // [Name]
// Admissions are delivered too, and what is said of other steps.
constexpr uint32_t kDeliveriesPerStep = 8;
constexpr int kNumClockQuestions = 5;
constexpr absl::Duration kClockTimeout = absl::Seconds(1);

// How far the clock of the stub's host is ahead of this one's: its time less the middle between
// question and answer, of the quickest of a few. 0 when that is no more than the middle is
// uncertain, so that what is on one host is not shifted; and from a rank that does not answer.
int64_t ClockAheadNs(worker::v1::WorkerService::Stub* stub, const std::string& token) {
  int64_t ahead_ns = 0;
  int64_t shortest_ns = INT64_MAX;
  for (int i = 0; i < kNumClockQuestions; ++i) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kClockTimeout));
    if (!token.empty()) context.AddMetadata(base::kClusterTokenKey, token);
    worker::v1::InspectResponse response;
    const int64_t begin_ns = base::UnixNanos();
    if (!stub->Inspect(&context, {}, &response).ok()) return 0;
    const int64_t round_trip_ns = base::UnixNanos() - begin_ns;
    if (round_trip_ns >= shortest_ns) continue;
    shortest_ns = round_trip_ns;
    ahead_ns = response.unix_ns() - (begin_ns + round_trip_ns / 2);
  }
  return std::abs(ahead_ns) <= shortest_ns / 2 ? 0 : ahead_ns;
}

}  // namespace

struct StepTracer::Trace {
  uint64_t id = 0;
  uint32_t num_steps = 0;
  absl::Duration timeout;
  TraceDone done;
  std::vector<grpc::ClientContext> contexts;  // [rank]
  v1::TraceStepsResponse response;            // the router's, then the ranks'
  std::atomic<bool> is_cancelled{false};
  std::atomic<bool> is_over{false};  // but for `done`, which may run still
  std::thread thread;
};

StepTracer::StepTracer(std::vector<std::string> addresses, std::string token,
                       base::SpanRecorder* recorder, base::SpanRecorder* delivery_recorder)
    : addresses_(std::move(addresses)),
      token_(std::move(token)),
      recorder_(recorder),
      delivery_recorder_(delivery_recorder) {}

StepTracer::~StepTracer() { Stop(); }

uint64_t StepTracer::Start(uint32_t num_steps, absl::Duration timeout, TraceDone done) {
  absl::Status refusal;
  std::unique_ptr<Trace> last;
  uint64_t id = 0;
  {
    base::MutexLock lock(&mutex_);
    if (is_stopped_) {
      refusal = absl::UnavailableError("the router is shutting down");
    } else if (trace_ != nullptr && !trace_->is_over.load()) {
      refusal = absl::FailedPreconditionError(
          "a trace is being recorded already: try again when it has ended");
    } else {
      last = std::move(trace_);
      trace_ = std::make_unique<Trace>();
      trace_->id = id = ++last_id_;
      trace_->num_steps = num_steps;
      trace_->timeout = timeout;
      trace_->done = std::move(done);
      trace_->contexts = std::vector<grpc::ClientContext>(addresses_.size());
      for (size_t i = 0; i <= addresses_.size(); ++i) trace_->response.add_processes();
      trace_->thread = std::thread([this, trace = trace_.get()] { Run(trace); });
    }
  }
  // Without the lock: the last one's `done` may be about to ask for it.
  if (last != nullptr) last->thread.join();
  if (id == 0) done(refusal, nullptr);
  return id;
}

void StepTracer::Abandon(uint64_t id) {
  base::MutexLock lock(&mutex_);
  if (trace_ != nullptr && trace_->id == id && !trace_->is_over.load()) Cancel(trace_.get());
}

void StepTracer::Stop() {
  std::unique_ptr<Trace> last;
  {
    base::MutexLock lock(&mutex_);
    is_stopped_ = true;
    last = std::move(trace_);
  }
  if (last == nullptr) return;
  Cancel(last.get());
  last->thread.join();
}

void StepTracer::Cancel(Trace* trace) {
  trace->is_cancelled.store(true);
  for (grpc::ClientContext& context : trace->contexts) context.TryCancel();
}

void StepTracer::Run(Trace* trace) {
  std::vector<absl::Status> results(addresses_.size());  // [rank]
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < addresses_.size(); ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = TraceRank(trace, rank);
      if (!results[rank].ok()) Cancel(trace);
    });
  }
  const auto spans = TraceRouter(trace);
  for (std::thread& thread : threads) thread.join();
  absl::Status status = spans.status();
  for (const absl::Status& result : results) {
    // Ranks were cancelled because another failed: that one is to blame.
    if (status.ok() || (absl::IsCancelled(status) && !result.ok())) status = result;
  }
  if (status.ok()) {
    v1::ProcessTrace* router = trace->response.mutable_processes(0);
    router->set_process("router");
    router->set_pid(static_cast<uint32_t>(getpid()));
    for (const char* name : kNames) router->add_span_names(name);
    router->set_origin_unix_ns(spans->empty() ? 0 : spans->front().begin_ns);
    for (const base::Span& span : *spans) {
      v1::StepSpan* out = router->add_spans();
      out->set_step(span.step);
      out->set_name(span.name);
      out->set_begin_ns(span.begin_ns - router->origin_unix_ns());
      out->set_duration_ns(span.end_ns - span.begin_ns);
      out->set_sequences(span.batch.num_sequences);
      out->set_tokens(span.batch.num_tokens);
    }
  }
  trace->is_over.store(true);  // first: who hears of the end may ask for the next
  trace->done(status, status.ok() ? &trace->response : nullptr);
}

absl::StatusOr<std::vector<base::Span>> StepTracer::TraceRouter(Trace* trace) {
  std::atomic<bool> is_over{false};
  std::promise<void> begin;  // kept when the delivery recorder has been armed, or refuses
  bool has_begun = false;
  const auto note_begin = [&] {
    if (!std::exchange(has_begun, true)) begin.set_value();
  };
  absl::StatusOr<std::vector<base::Span>> deliveries;
  std::thread delivery([&] {
    const uint32_t max_batches = trace->num_steps * kDeliveriesPerStep;
    deliveries = delivery_recorder_->Record(max_batches, max_batches, trace->timeout + kGrace, [&] {
      note_begin();
      return is_over.load();
    });
    note_begin();
  });
  begin.get_future().wait();
  auto spans = recorder_->Record(trace->num_steps, trace->num_steps * kSpansPerStep, trace->timeout,
                                 [trace] { return trace->is_cancelled.load(); });
  is_over.store(true);
  delivery.join();
  if (!spans.ok()) return spans.status();
  if (!deliveries.ok()) return deliveries.status();
  std::set<uint64_t> steps;
  for (const base::Span& span : *spans) steps.insert(span.step);
  for (base::Span span : *deliveries) {
    span.name = kDeliver;
    if (steps.count(span.step) > 0) spans->push_back(span);
  }
  std::stable_sort(spans->begin(), spans->end(), [](const base::Span& a, const base::Span& b) {
    return a.begin_ns < b.begin_ns;
  });
  return spans;
}

absl::Status StepTracer::TraceRank(Trace* trace, size_t rank) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxTraceBytes);
  const auto stub = worker::v1::WorkerService::NewStub(
      grpc::CreateCustomChannel(addresses_[rank], grpc::InsecureChannelCredentials(), args));
  grpc::ClientContext& context = trace->contexts[rank];
  context.set_deadline(absl::ToChronoTime(absl::Now() + trace->timeout + kGrace));
  if (!token_.empty()) context.AddMetadata(base::kClusterTokenKey, token_);
  worker::v1::TraceRequest request;
  request.set_steps(trace->num_steps);
  ToProto(trace->timeout, request.mutable_timeout());
  worker::v1::TraceResponse response;
  const grpc::Status status = stub->Trace(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status, absl::StrCat("rank ", rank));
  v1::ProcessTrace* const spans = response.mutable_trace();
  spans->set_origin_unix_ns(spans->origin_unix_ns() - ClockAheadNs(stub.get(), token_));
  trace->response.mutable_processes(static_cast<int>(rank) + 1)->Swap(spans);
  return absl::OkStatus();
}

}  // namespace shoal::router
