// What operators see and do, over a real server.

#include <chrono>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router/services_fixture.h"

namespace shoal::router {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace shoal::router
