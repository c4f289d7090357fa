#include "tests/cli/fake_router.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "grpcpp/health_check_service_interface.h"

namespace shoal::cli {

// Writes the pieces one after the other. Deletes itself when it is done.
class FakeRouter::Stream : public grpc::ServerWriteReactor<v1::GenerateStreamResponse> {
 public:
  explicit Stream(FakeRouter* router) : router_(router) {
    base::MutexLock lock(&router->mutex_);
    pieces_ = router->pieces_;
    status_ = router->stream_status_;
    hangs_ = router->hangs_;
    end_ = router->end_;
  }

  void Next() {
    if (index_ < pieces_.size()) {
      response_.Clear();
      v1::Choice* delta = response_.add_deltas();
      delta->set_text(pieces_[index_]);
      delta->add_token_ids(100 + index_);
      delta->add_logprobs()->mutable_chosen()->set_token_bytes(pieces_[index_]);
      response_.mutable_usage()->set_prompt_tokens(3);
      ++index_;
      StartWrite(&response_);
      return;
    }
    if (end_.deltas_size() > 0) {
      response_.Swap(&end_);
      end_.Clear();
      StartWrite(&response_);
      return;
    }
    base::MutexLock lock(&mutex_);
    if (!hangs_ || is_cancelled_) {
      Finish(is_cancelled_ ? grpc::Status::CANCELLED : status_);
    } else {
      waits_for_cancel_ = true;
    }
  }

  void OnWriteDone(bool) override {
    {
      base::MutexLock lock(&router_->mutex_);
      ++router_->num_written_;
      router_->changed_.SignalAll();
    }
    Next();
  }

  void OnCancel() override {
    {
      base::MutexLock lock(&router_->mutex_);
      ++router_->num_cancelled_;
      router_->changed_.SignalAll();
    }
    base::MutexLock lock(&mutex_);
    is_cancelled_ = true;
    if (waits_for_cancel_) Finish(grpc::Status::CANCELLED);
  }

  void OnDone() override { delete this; }

 private:
  FakeRouter* const router_;
  std::vector<std::string> pieces_;
  grpc::Status status_;
  bool hangs_ = false;
  v1::GenerateStreamResponse end_;
  size_t index_ = 0;
  v1::GenerateStreamResponse response_;
  base::Mutex mutex_;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool waits_for_cancel_ ABSL_GUARDED_BY(mutex_) = false;
};

class FakeRouter::Inference : public v1::InferenceService::CallbackService {
 public:
  explicit Inference(FakeRouter* router) : router_(router) {}

  grpc::ServerWriteReactor<v1::GenerateStreamResponse>* GenerateStream(
      grpc::CallbackServerContext*, const v1::GenerateStreamRequest* request) override {
    {
      base::MutexLock lock(&router_->mutex_);
      router_->generate_requests_.push_back(request->request());
    }
    auto* stream = new Stream(router_);
    stream->Next();
    return stream;
  }

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override {
    base::MutexLock lock(&router_->mutex_);
    router_->generate_requests_.push_back(*request);
    for (uint32_t i = 0; i < request->n(); ++i) {
      v1::Choice* choice = response->add_choices();
      choice->set_index(i);
      choice->set_text(absl::StrCat("answer ", i));
      choice->add_token_ids(7);
      choice->add_token_ids(8 + i);
    }
    return Finish(context);
  }

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    base::MutexLock lock(&router_->mutex_);
    router_->tokenize_request_ = *request;
    for (const uint32_t id : {5, 6}) response->add_ids(id);
    response->add_pieces("a\n");
    response->add_pieces("\xff");
    return Finish(context);
  }

  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override {
    base::MutexLock lock(&router_->mutex_);
    router_->detokenize_request_ = *request;
    response->set_text("some text");
    return Finish(context);
  }

  grpc::ServerUnaryReactor* ApplyChatTemplate(grpc::CallbackServerContext* context,
                                              const v1::ApplyChatTemplateRequest* request,
                                              v1::ApplyChatTemplateResponse* response) override {
    base::MutexLock lock(&router_->mutex_);
    const uint32_t num_ids = request->chat().messages_size() * router_->tokens_per_message_;
    for (uint32_t i = 0; i < num_ids; ++i) response->add_ids(i);
    return Finish(context);
  }

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest*,
                                       v1::ListModelsResponse* response) override {
    base::MutexLock lock(&router_->mutex_);
    *response->add_models() = Model();
    return Finish(context);
  }

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest*,
                                     v1::GetModelResponse* response) override {
    base::MutexLock lock(&router_->mutex_);
    *response->mutable_model() = Model();
    return Finish(context);
  }

 private:
  static v1::ModelInfo Model() {
    v1::ModelInfo model;
    model.set_name("tiny");
    model.set_vocab_size(64);
    model.set_max_context_tokens(256);
    model.add_end_token_ids(2);
    return model;
  }

  grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(router_->mutex_) {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(router_->status_);
    return reactor;
  }

  FakeRouter* const router_;
};

class FakeRouter::Admin : public v1::AdminService::Service {
 public:
  explicit Admin(FakeRouter* router) : router_(router) {}

  grpc::Status GetClusterStatus(grpc::ServerContext*, const v1::GetClusterStatusRequest*,
                                v1::GetClusterStatusResponse* response) override {
    response->set_ready(true);
    response->set_model("tiny");
    response->set_blocks_total(4242);
    return status();
  }

  grpc::Status ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest*,
                           v1::ListWorkersResponse* response) override {
    {
      base::MutexLock lock(&router_->mutex_);
      response->mutable_workers()->Assign(router_->workers_.begin(), router_->workers_.end());
    }
    if (response->workers_size() > 0) return status();
    for (const uint32_t rank : {1, 0}) {
      v1::Worker* worker = response->add_workers();
      worker->set_worker_id(absl::StrCat("rank-", rank));
      worker->set_rank(rank);
      worker->set_state(rank == 0 ? v1::WORKER_STATE_READY : v1::WORKER_STATE_LOADING);
      worker->set_load_bytes_done(1);
      worker->set_load_bytes_total(4);
    }
    return status();
  }

  grpc::Status ListRequests(grpc::ServerContext*, const v1::ListRequestsRequest*,
                            v1::ListRequestsResponse* response) override {
    for (const int arrival : {200, 100}) {
      v1::ActiveRequest* request = response->add_requests();
      request->set_request_id(absl::StrCat("req-", arrival));
      request->mutable_arrive_time()->set_seconds(arrival);
      request->set_queued(arrival == 200);
    }
    {
      base::MutexLock lock(&router_->mutex_);
      ++router_->num_lists_;
      router_->changed_.SignalAll();
    }
    return status();
  }

  grpc::Status CancelRequest(grpc::ServerContext*, const v1::CancelRequestRequest* request,
                             v1::CancelRequestResponse*) override {
    base::MutexLock lock(&router_->mutex_);
    router_->cancel_request_ = *request;
    return router_->status_;
  }

 private:
  grpc::Status status() {
    base::MutexLock lock(&router_->mutex_);
    return router_->status_;
  }

  FakeRouter* const router_;
};

FakeRouter::FakeRouter()
    : inference_(std::make_unique<Inference>(this)), admin_(std::make_unique<Admin>(this)) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(inference_.get());
  builder.RegisterService(admin_.get());
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr);
  address_ = absl::StrCat("127.0.0.1:", port);
}

FakeRouter::~FakeRouter() { server_->Shutdown(std::chrono::system_clock::now()); }

void FakeRouter::SetStream(std::vector<std::string> pieces, grpc::Status status, bool hangs) {
  base::MutexLock lock(&mutex_);
  pieces_ = std::move(pieces);
  stream_status_ = std::move(status);
  hangs_ = hangs;
}

void FakeRouter::SetEnd(v1::FinishReason reason, v1::Usage usage, v1::Timings timings) {
  base::MutexLock lock(&mutex_);
  end_.Clear();
  end_.add_deltas()->set_finish_reason(reason);
  *end_.mutable_usage() = std::move(usage);
  *end_.mutable_timings() = std::move(timings);
}

void FakeRouter::SetTokensPerMessage(uint32_t count) {
  base::MutexLock lock(&mutex_);
  tokens_per_message_ = count;
}

void FakeRouter::SetWorkers(std::vector<v1::Worker> workers) {
  base::MutexLock lock(&mutex_);
  workers_ = std::move(workers);
}

void FakeRouter::SetStatus(grpc::Status status) {
  base::MutexLock lock(&mutex_);
  status_ = std::move(status);
}

void FakeRouter::SetServing(const std::string& service, bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(service, serving);
}

std::vector<v1::GenerateRequest> FakeRouter::generate_requests() {
  base::MutexLock lock(&mutex_);
  return generate_requests_;
}

v1::TokenizeRequest FakeRouter::tokenize_request() {
  base::MutexLock lock(&mutex_);
  return tokenize_request_;
}

v1::DetokenizeRequest FakeRouter::detokenize_request() {
  base::MutexLock lock(&mutex_);
  return detokenize_request_;
}

v1::CancelRequestRequest FakeRouter::cancel_request() {
  base::MutexLock lock(&mutex_);
  return cancel_request_;
}

void FakeRouter::WaitForLists(int count) {
  base::MutexLock lock(&mutex_);
  while (num_lists_ < count) changed_.Wait(&mutex_);
}

void FakeRouter::WaitForStream() {
  base::MutexLock lock(&mutex_);
  while (num_written_ == 0) changed_.Wait(&mutex_);
}

void FakeRouter::WaitForCancel() {
  base::MutexLock lock(&mutex_);
  while (num_cancelled_ == 0) changed_.Wait(&mutex_);
}

}  // namespace shoal::cli
