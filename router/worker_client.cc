#include "router/worker_client.h"

#include <deque>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/cluster_token.h"
#include "base/protocol_version.h"
#include "glog/logging.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "router/rpc_status.h"

namespace shoal::router {
namespace {

namespace wire = worker::v1;

constexpr char kExecuteMethod[] = "/shoal.worker.v1.WorkerService/Execute";
// A model's description holds a vocabulary; it comes in chunks well below this.
constexpr int kMaxMessageBytes = 64 << 20;
constexpr size_t kMaxDescriptionBytes = 256 << 20;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  // A connection of its own, also where tests run several routers in one process.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A rank that comes back is to be found at once.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A peer that is gone without a FIN is noticed within 15 s; on this host the kernel tells at
  // once.
  if (!absl::StartsWith(address, "unix")) {
    args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
    args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // the group decides
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

}  // namespace

grpc::ByteBuffer SerializePlan(const wire::ExecuteRequest& request) {
  grpc::ByteBuffer buffer;
  bool owns_buffer = false;
  const grpc::Status status =
      grpc::SerializationTraits<wire::ExecuteRequest>::Serialize(request, &buffer, &owns_buffer);
  CHECK(status.ok()) << status.error_message();
  return buffer;
}

// A pending call; deletes itself when gRPC has returned its last tag.
class WorkerClient::Call {
 public:
  explicit Call(WorkerClient* client) : client_(client) {
    client_->calls_.insert(this);
    if (!client_->token_.empty()) context_.AddMetadata(base::kClusterTokenKey, client_->token_);
  }
  virtual ~Call() { client_->calls_.erase(this); }

  void SetTimeout(absl::Duration timeout) {
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  }
  // No callback any more.
  void Silence() {
    is_silent_ = true;
    context_.TryCancel();
  }

 protected:
  absl::Status ToStatus(const grpc::Status& status) const {
    return FromGrpcStatus(status,
                          absl::StrCat("rank ", client_->rank_, " (", client_->address_, ")"));
  }

  WorkerClient* const client_;
  grpc::ClientContext context_;
  bool is_silent_ = false;
};

template <typename Response>
class WorkerClient::Unary final : public Call, public CompletionTag {
 public:
  Unary(WorkerClient* client, Done<Response> done) : Call(client), done_(std::move(done)) {}

  // `prepare(context, queue)`: one of the stub's PrepareAsync functions.
  template <typename Prepare>
  void Start(Prepare prepare) {
    reader_ = prepare(&context_, client_->loop_->queue());
    reader_->StartCall();
    reader_->Finish(&response_, &status_, static_cast<CompletionTag*>(this));
  }

  void OnComplete(bool ok) override {
    if (!is_silent_) {
      if (status_.ok()) {
        done_(std::move(response_));
      } else {
        done_(ToStatus(status_));
      }
    }
    delete this;
  }

 private:
  const Done<Response> done_;
  Response response_;
  grpc::Status status_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader_;
};

template <typename Response>
class WorkerClient::ServerStream final : public Call, public CompletionTag {
 public:
  ServerStream(WorkerClient* client, std::function<void(Response&)> message,
               std::function<void(absl::Status)> done)
      : Call(client), message_(std::move(message)), done_(std::move(done)) {}

  template <typename Prepare>
  void Start(Prepare prepare) {
    reader_ = prepare(&context_, client_->loop_->queue());
    reader_->StartCall(tag());
  }

  void OnComplete(bool ok) override {
    if (is_finishing_) {
      if (!is_silent_) done_(ToStatus(status_));
      delete this;
      return;
    }
    if (ok && has_read_ && !is_silent_) message_(response_);
    if (ok) {
      has_read_ = true;
      reader_->Read(&response_, tag());
    } else {
      is_finishing_ = true;
      reader_->Finish(&status_, tag());
    }
  }

 private:
  CompletionTag* tag() { return this; }

  const std::function<void(Response&)> message_;
  const std::function<void(absl::Status)> done_;
  Response response_;
  grpc::Status status_;
  bool has_read_ = false;  // the tag that comes is a read's, not the start's
  bool is_finishing_ = false;
  std::unique_ptr<grpc::ClientAsyncReader<Response>> reader_;
};

// The Execute stream. Reads and writes run side by side, each with a tag of its own.
class WorkerClient::Stream final : public Call {
 public:
  Stream(WorkerClient* client, const std::string& epoch, StreamCallbacks callbacks)
      : Call(client), callbacks_(std::move(callbacks)) {
    context_.AddMetadata(base::kEpochKey, epoch);
  }

  void Start() {
    call_ = client_->generic_stub_.PrepareCall(&context_, kExecuteMethod, client_->loop_->queue());
    call_->StartCall(&start_tag_);
  }

  void Send(const grpc::ByteBuffer& plan) {
    unsent_.push_back(plan);
    WriteNext();
  }

 private:
  struct Tag final : public CompletionTag {
    using Handler = void (Stream::*)(bool ok);
    Tag(Stream* stream, Handler handler) : stream(stream), handler(handler) {}
    void OnComplete(bool ok) override { (stream->*handler)(ok); }
    Stream* const stream;
    const Handler handler;
  };

  void OnStarted(bool ok) {
    if (!ok) {
      BeginFinish();
      return;
    }
    is_started_ = true;
    if (!is_silent_) callbacks_.opened();
    call_->Read(&response_, &read_tag_);
    WriteNext();
  }

  void OnRead(bool ok) {
    if (!ok) {
      BeginFinish();
      return;
    }
    if (!is_silent_) callbacks_.reply(response_);
    call_->Read(&response_, &read_tag_);
  }

  void OnWritten(bool ok) {
    is_writing_ = false;
    if (!ok) is_broken_ = true;  // the read fails as well, and finishes
    WriteNext();
    DeleteIfDone();
  }

  void OnFinished(bool ok) {
    is_finished_ = true;
    if (!is_silent_) {
      client_->stream_ = nullptr;
      absl::Status status = ToStatus(status_);
      if (status.ok()) status = absl::UnavailableError("the rank ended its stream");
      callbacks_.closed(status);
    }
    DeleteIfDone();
  }

  void WriteNext() {
    if (!is_started_ || is_writing_ || is_broken_ || is_finishing_ || unsent_.empty()) return;
    is_writing_ = true;
    call_->Write(unsent_.front(), &write_tag_);
    unsent_.pop_front();
  }

  void BeginFinish() {
    is_finishing_ = true;
    call_->Finish(&status_, &finish_tag_);
  }

  void DeleteIfDone() {
    if (is_finished_ && !is_writing_) delete this;
  }

  const StreamCallbacks callbacks_;
  Tag start_tag_{this, &Stream::OnStarted};
  Tag read_tag_{this, &Stream::OnRead};
  Tag write_tag_{this, &Stream::OnWritten};
  Tag finish_tag_{this, &Stream::OnFinished};
  std::unique_ptr<grpc::ClientAsyncReaderWriter<grpc::ByteBuffer, wire::ExecuteResponse>> call_;
  wire::ExecuteResponse response_;       // reused from step to step
  std::deque<grpc::ByteBuffer> unsent_;  // at most the plans in flight
  grpc::Status status_;
  bool is_started_ = false;
  bool is_writing_ = false;
  bool is_broken_ = false;
  bool is_finishing_ = false;
  bool is_finished_ = false;
};

WorkerClient::WorkerClient(uint32_t rank, std::string address, std::string token,
                           CompletionLoop* loop)
    : rank_(rank),
      address_(std::move(address)),
      token_(std::move(token)),
      loop_(loop),
      channel_(MakeChannel(address_)),
      stub_(wire::WorkerService::NewStub(channel_)),
      generic_stub_(channel_) {}

WorkerClient::~WorkerClient() { CHECK(calls_.empty()) << "calls to rank " << rank_ << " pend"; }

void WorkerClient::GetWorkerInfo(absl::Duration timeout, Done<wire::GetWorkerInfoResponse> done) {
  auto* call = new Unary<wire::GetWorkerInfoResponse>(this, std::move(done));
  call->SetTimeout(timeout);
  call->Start([this](grpc::ClientContext* context, grpc::CompletionQueue* queue) {
    return stub_->PrepareAsyncGetWorkerInfo(context, {}, queue);
  });
}

void WorkerClient::LoadShard(const wire::LoadShardRequest& request, absl::Duration timeout,
                             std::function<void(const wire::LoadShardResponse&)> progress,
                             Done<wire::ShardLimits> done) {
  auto limits = std::make_shared<wire::ShardLimits>();  // shared by the call's two callbacks
  auto* call = new ServerStream<wire::LoadShardResponse>(
      this,
      [limits, progress = std::move(progress)](wire::LoadShardResponse& response) {
        if (response.has_limits()) *limits = response.limits();
        progress(response);
      },
      [limits, done = std::move(done)](absl::Status status) {
        if (!status.ok()) {
          done(std::move(status));
        } else {
          done(std::move(*limits));
        }
      });
  call->SetTimeout(timeout);
  call->Start([this, &request](grpc::ClientContext* context, grpc::CompletionQueue* queue) {
    return stub_->PrepareAsyncLoadShard(context, request, queue);
  });
}

void WorkerClient::GetModelDescription(absl::Duration timeout, Done<wire::ModelDescription> done) {
  auto bytes = std::make_shared<std::string>();  // shared by the call's two callbacks
  auto* call = new ServerStream<wire::GetModelDescriptionResponse>(
      this,
      [bytes](wire::GetModelDescriptionResponse& response) {
        // One chunk too many shows below as a message that does not parse.
        if (bytes->size() <= kMaxDescriptionBytes) bytes->append(response.chunk());
      },
      [bytes, done = std::move(done)](absl::Status status) {
        wire::ModelDescription description;
        if (!status.ok()) {
          done(std::move(status));
        } else if (bytes->size() > kMaxDescriptionBytes || !description.ParseFromString(*bytes)) {
          done(absl::DataLossError(
              absl::StrCat("a model description of ", bytes->size(), " bytes is malformed")));
        } else {
          done(std::move(description));
        }
      });
  call->SetTimeout(timeout);
  call->Start([this](grpc::ClientContext* context, grpc::CompletionQueue* queue) {
    return stub_->PrepareAsyncGetModelDescription(context, {}, queue);
  });
}

void WorkerClient::JoinGroup(const wire::JoinGroupRequest& request, absl::Duration timeout,
                             Done<wire::JoinGroupResponse> done) {
  auto* call = new Unary<wire::JoinGroupResponse>(this, std::move(done));
  call->SetTimeout(timeout);
  call->Start([this, &request](grpc::ClientContext* context, grpc::CompletionQueue* queue) {
    return stub_->PrepareAsyncJoinGroup(context, request, queue);
  });
}

void WorkerClient::AbortGroup(const wire::AbortGroupRequest& request, absl::Duration timeout,
                              Done<wire::AbortGroupResponse> done) {
  auto* call = new Unary<wire::AbortGroupResponse>(this, std::move(done));
  call->SetTimeout(timeout);
  call->Start([this, &request](grpc::ClientContext* context, grpc::CompletionQueue* queue) {
    return stub_->PrepareAsyncAbortGroup(context, request, queue);
  });
}

void WorkerClient::OpenStream(const std::string& epoch, StreamCallbacks callbacks) {
  CloseStream();
  stream_ = new Stream(this, epoch, std::move(callbacks));
  stream_->Start();
}

void WorkerClient::Send(const grpc::ByteBuffer& plan) {
  // Null between the loss of a stream and the next: the loss has been reported.
  if (stream_ != nullptr) stream_->Send(plan);
}

void WorkerClient::CloseStream() {
  if (stream_ != nullptr) std::exchange(stream_, nullptr)->Silence();
}

void WorkerClient::CancelAll() {
  stream_ = nullptr;
  for (Call* call : calls_) call->Silence();
}

}  // namespace shoal::router
