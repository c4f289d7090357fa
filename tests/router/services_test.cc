#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/alarm.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "gtest/gtest.h"
#include "router/router_server.h"
#include "shoal/v1/admin.grpc.pb.h"
#include "shoal/v1/inference.grpc.pb.h"
#include "tests/router/puppet_engine.h"

namespace shoal::router {
namespace {

using ::testing::HasSubstr;
using HealthStub = grpc::health::v1::Health::Stub;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// A client's streaming call and what it has read.
struct StreamCall {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateStreamResponse>> reader;
  v1::GenerateStreamResponse message;
  std::string text;

  bool Read() {
    if (!reader->Read(&message)) return false;
    for (const v1::Choice& delta : message.deltas()) text += delta.text();
    return true;
  }
  grpc::Status ReadAll() {
    while (Read()) {
    }
    return reader->Finish();
  }
};

// The real server and real clients over loopback; the engine is the test's puppet.
class ServicesTest : public ::testing::Test {
 protected:
  void SetUp() override { StartServer({}); }

  void StartServer(const RequestStream::Options& stream) {
    RouterServer::Options options;
    options.stream = stream;
    StartServerWith(options, absl::Now);
  }
  void StartServerWith(RouterServer::Options options, std::function<absl::Time()> clock) {
    options.version = "1.2.3";
    server_.reset();
    health_ = std::make_unique<Health>();
    health_->SetEngineReady(true);
    auto server = RouterServer::Start(options, &engine_, health_.get(), std::move(clock),
                                      [this] { return ++random_; });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    stub_ = v1::InferenceService::NewStub(channel_);
    health_stub_ = grpc::health::v1::Health::NewStub(channel_);
    admin_ = v1::AdminService::NewStub(
        grpc::CreateChannel(server_->admin_address(), grpc::InsecureChannelCredentials()));
  }

  static v1::GenerateRequest MakeRequest(const std::string& id = "") {
    v1::GenerateRequest request;
    request.set_prompt("hi");
    request.set_request_id(id);
    return request;
  }

  std::unique_ptr<StreamCall> OpenStream(const v1::GenerateRequest& request) {
    auto call = std::make_unique<StreamCall>();
    v1::GenerateStreamRequest message;
    *message.mutable_request() = request;
    call->reader = stub_->GenerateStream(&call->context, message);
    return call;
  }
  // Opens one and waits until the engine has its sequence, whose id is returned in `sequence`.
  std::unique_ptr<StreamCall> OpenAdmitted(const v1::GenerateRequest& request, uint64_t* sequence) {
    const size_t index = engine_.num_submissions();
    auto call = OpenStream(request);
    *sequence = engine_.WaitForSubmission(index)[0].id;
    return call;
  }

  HealthCheckResponse::ServingStatus CheckHealth(const std::string& service) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status = health_stub_->Check(&context, request, &response);
    return status.ok() ? response.status() : HealthCheckResponse::SERVICE_UNKNOWN;
  }

  uint64_t random_ = 0;
  PuppetEngine engine_;
  std::unique_ptr<Health> health_;
  std::unique_ptr<RouterServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  std::unique_ptr<HealthStub> health_stub_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

template <typename Details>
bool HasDetails(const grpc::Status& status, Details* details) {
  google::rpc::Status rich;
  if (!rich.ParseFromString(status.error_details())) return false;
  for (const auto& any : rich.details()) {
    if (any.UnpackTo(details)) return true;
  }
  return false;
}

std::string Trailer(const grpc::ClientContext& context, const std::string& key) {
  const auto it = context.GetServerTrailingMetadata().find(key);
  return it == context.GetServerTrailingMetadata().end()
             ? ""
             : std::string(it->second.data(), it->second.size());
}

TEST_F(ServicesTest, StreamsDeltasAsTheyCome) {
  uint64_t id = 0;
  const auto call = OpenAdmitted(MakeRequest("mine"), &id);
  engine_.Generate(id, "ab");
  ASSERT_TRUE(call->Read());
  EXPECT_EQ(call->message.request_id(), "mine");
  EXPECT_TRUE(call->message.has_seed());
  const auto& metadata = call->context.GetServerInitialMetadata();
  ASSERT_TRUE(metadata.contains("x-request-id"));
  EXPECT_EQ(metadata.find("x-request-id")->second, "mine");
  engine_.Generate(id, "c");
  engine_.EndAtToken(id);
  EXPECT_TRUE(call->ReadAll().ok());
  EXPECT_EQ(call->text, "abc");
  EXPECT_EQ(call->message.usage().completion_tokens(), 4u);
}

TEST_F(ServicesTest, UnaryIsTheStreamCollected) {
  grpc::ClientContext context;
  v1::GenerateResponse response;
  v1::GenerateRequest request = MakeRequest("u");
  request.set_n(2);
  request.set_return_token_ids(true);
  auto done =
      std::async(std::launch::async, [&] { return stub_->Generate(&context, request, &response); });
  const uint64_t first = engine_.WaitForSubmission(0)[0].id;
  engine_.Generate(first + 1, "x");
  engine_.Generate(first, "ab");
  engine_.EndAtLength(first + 1);
  engine_.EndAtToken(first);
  ASSERT_TRUE(done.get().ok());
  ASSERT_EQ(response.choices_size(), 2);
  EXPECT_EQ(response.choices(0).text(), "ab");
  EXPECT_EQ(response.choices(0).token_ids_size(), 3);
  EXPECT_EQ(response.choices(0).finish_reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(response.choices(1).text(), "x");
  EXPECT_EQ(response.usage().completion_tokens(), 4u);
  EXPECT_EQ(response.request_id(), "u");
  EXPECT_EQ(response.numerics_id(), "test-numerics");
  EXPECT_GT(response.create_time().seconds(), 0);
}

TEST_F(ServicesTest, NamesTheFieldOfABadRequest) {
  v1::GenerateRequest request = MakeRequest();
  request.mutable_sampling()->set_top_p(2);
  const auto call = OpenStream(request);
  const grpc::Status status = call->ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::BadRequest details;
  ASSERT_TRUE(HasDetails(status, &details));
  EXPECT_EQ(details.field_violations(0).field(), "sampling.top_p");
  EXPECT_THAT(status.error_message(), HasSubstr("is 2, must be in (0, 1]"));
  EXPECT_EQ(engine_.num_submissions(), 0u);
}

TEST_F(ServicesTest, OverloadIsResourceExhaustedWithPushback) {
  engine_.SetAdmission(absl::ResourceExhaustedError("the queue is full"));
  const auto call = OpenStream(MakeRequest());
  const grpc::Status status = call->ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(HasDetails(status, &retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(Trailer(call->context, "grpc-retry-pushback-ms"), "1000");
  EXPECT_EQ(CheckHealth("readiness"), HealthCheckResponse::SERVING) << "overload is not unready";
}

TEST_F(ServicesTest, AClientWithARetryPolicyTriesAgainByItself) {
  grpc::ChannelArguments args;
  args.SetServiceConfigJSON(R"({"methodConfig":[{"name":[{"service":"shoal.v1.InferenceService"}],
      "retryPolicy":{"maxAttempts":3,"initialBackoff":"0.01s","maxBackoff":"0.1s",
      "backoffMultiplier":2,"retryableStatusCodes":["RESOURCE_EXHAUSTED"]}}]})");
  const auto stub = v1::InferenceService::NewStub(
      grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), args));
  engine_.SetAdmission(absl::ResourceExhaustedError("the queue is full"), /*times=*/1);
  grpc::ClientContext context;
  v1::GenerateResponse response;
  auto done = std::async(std::launch::async,
                         [&] { return stub->Generate(&context, MakeRequest(), &response); });
  const uint64_t id = engine_.WaitForSubmission(1)[0].id;  // the second
  engine_.Generate(id, "ok");
  engine_.EndAtLength(id);
  EXPECT_TRUE(done.get().ok());
  EXPECT_EQ(response.choices(0).text(), "ok");
}

TEST_F(ServicesTest, IsUnavailableWhileTheModelLoads) {
  engine_.SetModel(nullptr);
  engine_.SetReadiness(absl::UnavailableError("its ranks are starting"));
  const auto call = OpenStream(MakeRequest());
  const grpc::Status status = call->ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("its ranks are starting"));
  EXPECT_EQ(Trailer(call->context, "grpc-retry-pushback-ms"), "1000");
  grpc::ClientContext context;
  v1::ListModelsResponse models;
  EXPECT_TRUE(stub_->ListModels(&context, {}, &models).ok());
  EXPECT_EQ(models.models_size(), 0);
}

TEST_F(ServicesTest, ACancelledCallFreesItsSequences) {
  v1::GenerateRequest request = MakeRequest();
  request.set_n(2);
  uint64_t id = 0;
  const auto call = OpenAdmitted(request, &id);
  engine_.Generate(id, "a");
  ASSERT_TRUE(call->Read());
  call->context.TryCancel();
  EXPECT_THAT(engine_.WaitForCancels(2), ::testing::ElementsAre(id, id + 1));
  EXPECT_EQ(call->ReadAll().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server_->requests()->WaitUntilEmpty(absl::Seconds(10)));
}

TEST_F(ServicesTest, TheDeadlineReachesTheEngineAndEndsTheCall) {
  // Long enough to reach the engine: on a machine under load the first tries may not.
  std::unique_ptr<StreamCall> call;
  std::chrono::system_clock::time_point deadline;
  for (auto timeout = std::chrono::milliseconds(200); engine_.num_submissions() == 0;
       timeout *= 2) {
    call = std::make_unique<StreamCall>();
    deadline = std::chrono::system_clock::now() + timeout;
    call->context.set_deadline(deadline);
    v1::GenerateStreamRequest message;
    *message.mutable_request() = MakeRequest();
    call->reader = stub_->GenerateStream(&call->context, message);
    EXPECT_EQ(call->ReadAll().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  const Request sequence = engine_.WaitForSubmission(0)[0];
  EXPECT_LT(sequence.deadline, absl::FromChrono(deadline) + absl::Milliseconds(100));
  EXPECT_GT(sequence.deadline, absl::FromChrono(deadline) - absl::Milliseconds(200));
  engine_.WaitForCancels(1);
}

TEST_F(ServicesTest, ARunningRequestIdIsTakenUntilItEnds) {
  uint64_t id = 0;
  const auto first = OpenAdmitted(MakeRequest("same"), &id);
  EXPECT_EQ(OpenStream(MakeRequest("same"))->ReadAll().error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  engine_.EndAtLength(id);
  EXPECT_TRUE(first->ReadAll().ok());
  // At once: who hears of the end may use the id again.
  for (int i = 0; i < 20; ++i) {
    const auto again = OpenAdmitted(MakeRequest("same"), &id);
    engine_.EndAtLength(id);
    EXPECT_TRUE(again->ReadAll().ok());
  }
}

TEST_F(ServicesTest, AClientThatDoesNotReadEndsOnlyItsOwnRequest) {
  StartServer({.max_pending_bytes = 1 << 16});
  uint64_t slow_id = 0;
  uint64_t id = 0;
  const auto slow = OpenAdmitted(MakeRequest(), &slow_id);
  const auto other = OpenAdmitted(MakeRequest(), &id);
  const std::vector<uint32_t> burst(1 << 14, kHello);
  while (engine_.num_cancels() == 0) engine_.GenerateTokens(slow_id, burst);
  engine_.Generate(id, "fine");
  engine_.EndAtLength(id);
  EXPECT_TRUE(other->ReadAll().ok());
  EXPECT_EQ(other->text, "fine");
  const grpc::Status status = slow->ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
}

TEST_F(ServicesTest, ADrainFinishesWhatRunsAndRefusesWhatComes) {
  uint64_t id = 0;
  const auto running = OpenAdmitted(MakeRequest(), &id);
  server_->StartDraining("told to stop");
  EXPECT_EQ(CheckHealth("readiness"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(CheckHealth(""), HealthCheckResponse::SERVING);
  const auto refused = OpenStream(MakeRequest());
  EXPECT_EQ(refused->ReadAll().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Trailer(refused->context, "grpc-retry-pushback-ms"), "1000");
  auto drained =
      std::async(std::launch::async, [&] { return server_->FinishDraining(absl::Seconds(30)); });
  engine_.Generate(id, "done");
  engine_.EndAtToken(id);
  EXPECT_TRUE(running->ReadAll().ok());
  EXPECT_EQ(running->text, "done");
  EXPECT_TRUE(drained.get());
}

TEST_F(ServicesTest, ADrainThatTakesTooLongEndsTheRestUnavailable) {
  uint64_t id = 0;
  const auto running = OpenAdmitted(MakeRequest(), &id);
  server_->StartDraining("told to stop");
  EXPECT_FALSE(server_->FinishDraining(absl::Milliseconds(10)));
  const grpc::Status status = running->ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("drain timeout"));
}

TEST_F(ServicesTest, StopDoesNotWaitForOpenHealthWatchesAndStreams) {
  grpc::ClientContext watch_context;
  HealthCheckRequest request;
  const auto watch = health_stub_->Watch(&watch_context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  uint64_t id = 0;
  const auto running = OpenAdmitted(MakeRequest(), &id);
  const absl::Time start = absl::Now();
  server_->Stop();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(running->ReadAll().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(OpenStream(MakeRequest())->ReadAll().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ServicesTest, HealthFollowsTheEngine) {
  EXPECT_EQ(CheckHealth(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(CheckHealth("readiness"), HealthCheckResponse::SERVING);
  EXPECT_EQ(CheckHealth("shoal.v1.InferenceService"), HealthCheckResponse::SERVING);
  EXPECT_EQ(CheckHealth("other"), HealthCheckResponse::SERVICE_UNKNOWN);
  health_->SetEngineReady(false);
  EXPECT_EQ(CheckHealth(""), HealthCheckResponse::SERVING) << "alive";
  EXPECT_EQ(CheckHealth("readiness"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(CheckHealth("shoal.v1.InferenceService"), HealthCheckResponse::NOT_SERVING);
  health_->SetEngineReady(true);
  EXPECT_EQ(CheckHealth("readiness"), HealthCheckResponse::SERVING);
}

TEST_F(ServicesTest, TwoServersCannotShareAPort) {
  RouterServer::Options options;
  options.listen = server_->address();
  const auto second =
      RouterServer::Start(options, &engine_, health_.get(), absl::Now, [] { return 0; });
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server_->address()));
}

TEST_F(ServicesTest, AnswersWithoutTheEngine) {
  grpc::ClientContext context1, context2, context3, context4;
  v1::TokenizeRequest tokenize;
  tokenize.set_text("hey");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&context1, tokenize, &tokens).ok());
  EXPECT_EQ(tokens.ids_size(), 3);
  v1::DetokenizeRequest detokenize;
  detokenize.mutable_ids()->CopyFrom(tokens.ids());
  v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(&context2, detokenize, &text).ok());
  EXPECT_EQ(text.text(), "hey");
  v1::GetModelResponse model;
  ASSERT_TRUE(stub_->GetModel(&context3, {}, &model).ok());
  EXPECT_EQ(model.model().name(), "test-model");
  EXPECT_EQ(model.model().vocab_size(), kVocabSize);
  EXPECT_EQ(model.model().end_token_ids_size(), 2);
  v1::GetModelRequest other;
  other.set_model("other");
  EXPECT_EQ(stub_->GetModel(&context4, other, &model).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServicesTest, OperatorsSeeAndCancelRequests) {
  uint64_t id = 0;
  const auto call = OpenAdmitted(MakeRequest("victim"), &id);
  engine_.Generate(id, "ab");
  ASSERT_TRUE(call->Read());
  grpc::ClientContext context1, context2, context3;
  v1::ListRequestsResponse list;
  ASSERT_TRUE(admin_->ListRequests(&context1, {}, &list).ok());
  ASSERT_EQ(list.requests_size(), 1);
  EXPECT_EQ(list.requests(0).request_id(), "victim");
  EXPECT_EQ(list.requests(0).prompt_tokens(), 2u);
  EXPECT_EQ(list.requests(0).generated_tokens(), 2u);
  EXPECT_FALSE(list.requests(0).queued());
  EXPECT_THAT(list.requests(0).peer(), HasSubstr("127.0.0.1"));
  v1::CancelRequestRequest cancel;
  cancel.set_request_id("victim");
  cancel.set_reason("too loud");
  v1::CancelRequestResponse cancelled;
  ASSERT_TRUE(admin_->CancelRequest(&context2, cancel, &cancelled).ok());
  const grpc::Status status = call->ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_THAT(status.error_message(), HasSubstr("too loud"));
  engine_.WaitForCancels(1);
  cancel.set_request_id("nobody");
  EXPECT_EQ(admin_->CancelRequest(&context3, cancel, &cancelled).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServicesTest, OperatorsSeeTheCluster) {
  EngineStatus* status = engine_.mutable_status();
  status->epoch = 3;
  status->num_blocks = 10;
  status->scheduler.num_free_blocks = 4;
  status->scheduler.num_cached_blocks = 6;
  RankStatus& rank = status->ranks.emplace_back();
  rank.pid = 77;
  rank.state = RankState::kReady;
  grpc::ClientContext context1, context2;
  v1::GetClusterStatusResponse cluster;
  ASSERT_TRUE(admin_->GetClusterStatus(&context1, {}, &cluster).ok());
  EXPECT_EQ(cluster.version(), "1.2.3");
  EXPECT_TRUE(cluster.ready());
  EXPECT_EQ(cluster.model(), "test-model");
  EXPECT_EQ(cluster.epoch(), 3u);
  EXPECT_EQ(cluster.blocks_free() + cluster.blocks_held() + cluster.blocks_cached(),
            cluster.blocks_total());
  v1::ListWorkersResponse workers;
  ASSERT_TRUE(admin_->ListWorkers(&context2, {}, &workers).ok());
  ASSERT_EQ(workers.workers_size(), 1);
  EXPECT_EQ(workers.workers(0).pid(), 77u);
  EXPECT_EQ(workers.workers(0).state(), v1::WORKER_STATE_READY);
}

TEST_F(ServicesTest, TracesStepsWithinLimitsAndStopsWhenNobodyWaits) {
  v1::TraceStepsRequest request;
  v1::TraceStepsResponse response;
  for (const uint32_t steps : {0, 1001}) {
    grpc::ClientContext context;
    request.set_steps(steps);
    EXPECT_EQ(admin_->TraceSteps(&context, request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  request.set_steps(3);
  for (const int seconds : {-1, 0, 601}) {
    grpc::ClientContext context;
    request.mutable_timeout()->set_seconds(seconds);
    EXPECT_EQ(admin_->TraceSteps(&context, request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  request.mutable_timeout()->set_seconds(600);
  grpc::ClientContext traced;
  ASSERT_TRUE(admin_->TraceSteps(&traced, request, &response).ok());
  ASSERT_EQ(response.processes_size(), 1);
  EXPECT_EQ(response.processes(0).spans(0).step(), 3u);
  request.set_steps(11);
  grpc::ClientContext abandoned;
  abandoned.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  EXPECT_EQ(admin_->TraceSteps(&abandoned, request, &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(engine_.WaitForCancels(1), ::testing::ElementsAre(7));
}

TEST_F(ServicesTest, WhatAllClientsLeaveUnreadIsBounded) {
  RouterServer::Options options;
  options.outboxes.max_bytes = 1 << 18;
  StartServerWith(options, absl::Now);
  uint64_t small_id = 0;
  uint64_t large_id = 0;
  const auto small = OpenAdmitted(MakeRequest(), &small_id);
  const auto large = OpenAdmitted(MakeRequest(), &large_id);
  engine_.GenerateTokens(small_id, std::vector<uint32_t>(1 << 10, kHello));
  const std::vector<uint32_t> burst(1 << 12, kHello);
  while (engine_.num_cancels() == 0) engine_.GenerateTokens(large_id, burst);
  EXPECT_THAT(engine_.WaitForCancels(1), ::testing::ElementsAre(large_id));
  // It ends though it has not read the message before.
  const grpc::Status status = large->ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("more than for any other"));
  engine_.EndAtLength(small_id);
  EXPECT_TRUE(small->ReadAll().ok());
}

// A client that takes 16 bytes ahead of its reads.
std::shared_ptr<grpc::Channel> ConnectLazily(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

TEST_F(ServicesTest, AnAnswerThatIsNotReadInTimeEndsItsCall) {
  RouterServer::Options options;
  options.outboxes.max_write_time = absl::Milliseconds(100);
  StartServerWith(options, absl::Now);
  v1::TokenizeRequest request;
  request.set_text(std::string(1 << 19, 'a'));
  const grpc::Slice bytes(request.SerializeAsString());
  grpc::GenericStub stub(ConnectLazily(server_->address()));
  grpc::CompletionQueue queue;
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  // A busy machine may end it later, so the client waits ever longer before it reads.
  grpc::Status status;
  for (auto patience = std::chrono::milliseconds(200);
       status.ok() && patience < std::chrono::seconds(20); patience *= 2) {
    grpc::ClientContext context;
    const auto call = stub.PrepareCall(&context, "/shoal.v1.InferenceService/Tokenize", &queue);
    call->StartCall(nullptr);
    EXPECT_TRUE(wait());
    call->WriteLast(grpc::ByteBuffer(&bytes, 1), {}, nullptr);
    EXPECT_TRUE(wait());
    grpc::Alarm alarm;
    alarm.Set(&queue, std::chrono::system_clock::now() + patience, nullptr);
    EXPECT_TRUE(wait());
    grpc::ByteBuffer response;
    call->Read(&response, nullptr);
    wait();
    call->Finish(&status, nullptr);
    EXPECT_TRUE(wait());
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("has not read"));
}

TEST_F(ServicesTest, AMessageThatIsNotReadInTimeEndsItsCall) {
  RouterServer::Options options;
  options.outboxes.max_write_time = absl::Milliseconds(100);
  StartServerWith(options, absl::Now);
  stub_ = v1::InferenceService::NewStub(ConnectLazily(server_->address()));
  uint64_t id = 0;
  const auto slow = OpenAdmitted(MakeRequest(), &id);
  for (int i = 0; i < 8; ++i) engine_.GenerateTokens(id, std::vector<uint32_t>(1 << 15, kHello));
  EXPECT_THAT(engine_.WaitForCancels(1), ::testing::ElementsAre(id));
  EXPECT_TRUE(server_->requests()->WaitUntilEmpty(absl::Seconds(10)));
  const grpc::Status status = slow->ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("has not read"));
}

TEST_F(ServicesTest, AfterTheLastRequestOpenConnectionsHearUnavailable) {
  uint64_t id = 0;
  const auto running = OpenAdmitted(MakeRequest(), &id);
  server_->EndRequests();
  EXPECT_EQ(running->ReadAll().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(server_->requests()->WaitUntilEmpty(absl::ZeroDuration())) << "all have their end";
  const grpc::Status status = OpenStream(MakeRequest())->ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("the router is shutting down")) << "by the router";
  v1::GenerateRequest large = MakeRequest();
  large.set_prompt(std::string(WorkLanes::kMaxMediumBytes + 1, 'a'));
  EXPECT_EQ(OpenStream(large)->ReadAll().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ServicesTest, ListensOnUnixSockets) {
  RouterServer::Options options;
  options.listen = absl::StrCat("unix-abstract:shoal-services-test-", getpid());
  StartServerWith(options, absl::Now);
  EXPECT_EQ(server_->address(), options.listen);
  grpc::ClientContext context;
  v1::ListModelsResponse models;
  EXPECT_TRUE(stub_->ListModels(&context, {}, &models).ok());
}

TEST_F(ServicesTest, ABrokenMessageIsAnInvalidArgument) {
  const auto stream = OpenStream([] {
    v1::GenerateRequest request;
    request.set_prompt("\xff\xfe is no UTF-8");
    return request;
  }());
  const grpc::Status status = stream->ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("shoal.v1.GenerateStreamRequest"));

  const grpc::Slice truncated("\x12\x7f");  // a string of 127 bytes, of which none follows
  const auto admin_channel =
      grpc::CreateChannel(server_->admin_address(), grpc::InsecureChannelCredentials());
  for (const std::string method :
       {"Inference/Generate", "Inference/Tokenize", "Inference/Detokenize",
        "Inference/ApplyChatTemplate", "Admin/ListWorkers", "Admin/CancelRequest"}) {
    const std::pair<std::string, std::string> names = absl::StrSplit(method, '/');
    const std::string path = absl::StrCat("/shoal.v1.", names.first, "Service/", names.second);
    grpc::ClientContext context;
    grpc::ByteBuffer response;
    const grpc::Status broken = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer>(
        names.first == "Admin" ? admin_channel.get() : channel_.get(),
        grpc::internal::RpcMethod(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC), &context,
        grpc::ByteBuffer(&truncated, 1), &response);
    EXPECT_EQ(broken.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(broken.error_message(), HasSubstr("protobuf is broken")) << method;
  }
}

// The lane of large requests stands still, in the clock that rendering a template asks, until
// the test lets it go on.
class LargeRequestsTest : public ServicesTest {
 protected:
  void SetUp() override {
    engine_.SetModel(MakeTestModel({.chat_template = kChatTemplate}));
    RouterServer::Options options;
    options.lanes.large.nice = kNice;
    options.lanes.large.max_waiting = 2;
    StartServerWith(options, [this] {
      if (getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())) == kNice) {
        if (num_rendered_.fetch_add(1) == 0) is_held_.set_value();
        released_.wait();
      }
      return absl::Now();
    });
    request_.mutable_chat()->add_messages()->set_role("user");
    request_.mutable_chat()->mutable_messages(0)->set_content(
        std::string(WorkLanes::kMaxMediumBytes + 1, 'a'));
  }
  void TearDown() override { Release(); }
  void Release() {
    if (!std::exchange(is_released_, true)) release_.set_value();
  }

  struct Call {
    grpc::ClientContext context;
    v1::ApplyChatTemplateResponse response;
    std::promise<grpc::Status> done;
    grpc::Status Wait() { return done.get_future().get(); }
  };
  std::unique_ptr<Call> Send() {
    auto call = std::make_unique<Call>();
    stub_->async()->ApplyChatTemplate(&call->context, &request_, &call->response,
                                      [c = call.get()](grpc::Status s) { c->done.set_value(s); });
    return call;
  }

  static constexpr int kNice = 11;
  v1::ApplyChatTemplateRequest request_;
  std::promise<void> is_held_;
  std::promise<void> release_;
  std::shared_future<void> released_ = release_.get_future().share();
  bool is_released_ = false;
  std::atomic<int> num_rendered_{0};
};

TEST_F(LargeRequestsTest, OthersAreServedMeanwhile) {
  const auto large = Send();
  is_held_.get_future().wait();
  std::vector<std::unique_ptr<Call>> waiting;
  for (int i = 0; i < 2; ++i) waiting.push_back(Send());
  uint64_t id = 0;
  const auto stream = OpenAdmitted(MakeRequest(), &id);
  engine_.Generate(id, "flows");
  engine_.EndAtLength(id);
  EXPECT_TRUE(stream->ReadAll().ok());
  EXPECT_EQ(stream->text, "flows");
  grpc::ClientContext context1, context2;
  v1::GetClusterStatusResponse cluster;
  EXPECT_TRUE(admin_->GetClusterStatus(&context1, {}, &cluster).ok());
  v1::TokenizeRequest tokenize;
  tokenize.set_text(std::string(WorkLanes::kMaxInlineBytes + 1, 'b'));
  v1::TokenizeResponse tokens;
  EXPECT_TRUE(stub_->Tokenize(&context2, tokenize, &tokens).ok());
  Release();
  EXPECT_TRUE(large->Wait().ok());
  EXPECT_GT(large->response.ids_size(), static_cast<int>(WorkLanes::kMaxMediumBytes));
  for (const auto& call : waiting) EXPECT_TRUE(call->Wait().ok());
}

TEST_F(LargeRequestsTest, MoreThanMayWaitAreRefusedAtOnceWithPushback) {
  const auto held = Send();
  is_held_.get_future().wait();
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(Send());
  // Which of them is refused is a matter of chance; only one can end before the release.
  std::vector<std::future<grpc::Status>> ends;
  for (const auto& call : calls) ends.push_back(call->done.get_future());
  size_t refused = ends.size();
  while (refused == ends.size()) {
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].wait_for(std::chrono::milliseconds(1)) == std::future_status::ready) refused = i;
    }
  }
  EXPECT_EQ(ends[refused].get().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Trailer(calls[refused]->context, "grpc-retry-pushback-ms"), "1000");
  Release();
  EXPECT_TRUE(held->Wait().ok());
  for (size_t i = 0; i < ends.size(); ++i) {
    if (i == refused) continue;
    EXPECT_TRUE(ends[i].get().ok());
  }
}

TEST_F(LargeRequestsTest, NoWorkIsDoneForClientsThatAreGone) {
  const auto held = Send();
  is_held_.get_future().wait();
  const auto gone = Send();
  v1::GenerateRequest request = MakeRequest();
  *request.mutable_chat() = request_.chat();
  request.set_truncate_prompt_tokens(4);
  const auto gone_stream = OpenStream(request);
  gone->context.TryCancel();
  gone_stream->context.TryCancel();
  EXPECT_EQ(gone->Wait().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(gone_stream->ReadAll().error_code(), grpc::StatusCode::CANCELLED);
  // Calls on the same connection after the cancellations: the server has seen them.
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    v1::ListModelsResponse models;
    ASSERT_TRUE(stub_->ListModels(&context, {}, &models).ok());
  }
  Release();
  EXPECT_TRUE(held->Wait().ok());
  grpc::Status last;
  do {  // the dead calls have places for a moment still
    last = Send()->Wait();
  } while (last.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(last.ok());
  EXPECT_EQ(num_rendered_.load(), 2) << "the first and the last";
  EXPECT_EQ(engine_.num_submissions(), 0u);
}

}  // namespace
}  // namespace shoal::router
