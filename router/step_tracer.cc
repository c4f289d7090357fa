#include "router/step_tracer.h"

#include <unistd.h>

#include <atomic>
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
constexpr size_t kSpansPerStep = 3;

}  // namespace

struct StepTracer::Trace {
  uint64_t id = 0;
  uint32_t num_steps = 0;
  absl::Duration timeout;
  TraceDone done;
  std::vector<grpc::ClientContext> contexts;  // [rank]
  v1::TraceStepsResponse response;            // the router's, then the ranks'
  std::atomic<bool> is_over{false};
  std::thread thread;
};

StepTracer::StepTracer(std::vector<std::string> addresses, std::string token,
                       base::SpanRecorder* recorder)
    : addresses_(std::move(addresses)), token_(std::move(token)), recorder_(recorder) {}

StepTracer::~StepTracer() { Stop(); }

uint64_t StepTracer::Start(uint32_t num_steps, absl::Duration timeout, TraceDone done) {
  absl::Status refusal;
  {
    base::MutexLock lock(&mutex_);
    if (is_stopped_) {
      refusal = absl::UnavailableError("the router is shutting down");
    } else if (trace_ != nullptr && !trace_->is_over.load()) {
      refusal = absl::FailedPreconditionError(
          "a trace is being recorded already: try again when it has ended");
    } else {
      if (trace_ != nullptr) trace_->thread.join();
      trace_ = std::make_unique<Trace>();
      trace_->id = ++last_id_;
      trace_->num_steps = num_steps;
      trace_->timeout = timeout;
      trace_->done = std::move(done);
      trace_->contexts = std::vector<grpc::ClientContext>(addresses_.size());
      for (size_t i = 0; i <= addresses_.size(); ++i) trace_->response.add_processes();
      trace_->thread = std::thread([this, trace = trace_.get()] { Run(trace); });
      return trace_->id;
    }
  }
  done(refusal, nullptr);
  return 0;
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
  for (grpc::ClientContext& context : trace->contexts) context.TryCancel();
  recorder_->Abandon();
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
  auto spans =
      recorder_->Record(trace->num_steps, trace->num_steps * kSpansPerStep, trace->timeout);
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
    for (const char* name : {"plan", "in flight", "commit"}) router->add_span_names(name);
    router->set_origin_unix_ns(spans->empty() ? 0 : spans->front().begin_ns);
    for (const base::Span& span : *spans) {
      v1::StepSpan* out = router->add_spans();
      out->set_step(span.step);
      out->set_name(span.name);
      out->set_begin_ns(span.begin_ns - router->origin_unix_ns());
      out->set_duration_ns(span.end_ns - span.begin_ns);
    }
  }
  trace->done(status, status.ok() ? &trace->response : nullptr);
  trace->is_over.store(true);
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
  trace->response.mutable_processes(static_cast<int>(rank) + 1)->Swap(response.mutable_trace());
  return absl::OkStatus();
}

}  // namespace shoal::router
