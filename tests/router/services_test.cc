#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router/services_fixture.h"

namespace shoal::router {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace shoal::router
