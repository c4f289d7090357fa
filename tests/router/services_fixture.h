#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "router/router_server.h"
#include "shoal/v1/admin.grpc.pb.h"
#include "shoal/v1/inference.grpc.pb.h"
#include "tests/router/puppet_engine.h"

namespace shoal::router {

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

inline std::string Trailer(const grpc::ClientContext& context, const std::string& key) {
  const auto it = context.GetServerTrailingMetadata().find(key);
  return it == context.GetServerTrailingMetadata().end()
             ? ""
             : std::string(it->second.data(), it->second.size());
}

}  // namespace shoal::router
