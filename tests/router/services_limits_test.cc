// What clients leave unread, what they send broken, and what is large.

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "grpcpp/alarm.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "gtest/gtest.h"
#include "tests/router/services_fixture.h"

namespace shoal::router {
namespace {

using ::testing::HasSubstr;

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
