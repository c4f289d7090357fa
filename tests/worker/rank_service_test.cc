#include "worker/rank_service.h"

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/rank_fixture.h"

namespace shoal::worker {
namespace {

using testing::HasSubstr;

TEST_F(RankServiceTest, TwoRanksAnswerEveryPlanAndAgree) {
  StartRanks(2);
  LoadAndJoin("router", 1);
  PlanStream first(ranks_[0].get());
  PlanStream second(ranks_[1].get());
  std::vector<uint32_t> tokens;
  for (uint64_t step = 1; step <= 6; ++step) {
    const v1::StepPlan plan =
        step == 1 ? PromptPlan("router", 1, step) : DecodePlanOf("router", 1, step);
    ASSERT_TRUE(first.Write(plan) && second.Write(plan));
    v1::ExecuteResponse a;
    v1::ExecuteResponse b;
    ASSERT_TRUE(first.Read(&a) && second.Read(&b));
    EXPECT_EQ(a.step(), step);
    EXPECT_EQ(a.state_hash(), b.state_hash());
    EXPECT_EQ(a.token_hash(), b.token_hash());
    EXPECT_EQ(b.outputs_size(), 0) << "the first shard alone brings the tokens";
    ASSERT_EQ(a.outputs_size(), 1);
    ASSERT_EQ(a.outputs(0).token_ids_size(), 1);
    tokens.push_back(a.outputs(0).token_ids(0));
  }
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());

  // One rank alone gives the same tokens.
  ranks_.clear();
  StartRanks(1);
  LoadAndJoin("router", 1);
  PlanStream alone(ranks_[0].get());
  for (uint64_t step = 1; step <= 6; ++step) {
    ASSERT_TRUE(
        alone.Write(step == 1 ? PromptPlan("router", 1, step) : DecodePlanOf("router", 1, step)));
    v1::ExecuteResponse response;
    ASSERT_TRUE(alone.Read(&response));
    EXPECT_EQ(response.outputs(0).token_ids(0), tokens[step - 1]);
  }
}

TEST_F(RankServiceTest, ARankBeyondTheGroupIsRefused) {
  StartRanks(1);
  grpc::ClientContext context;
  v1::LoadShardRequest request;
  request.set_rank(4);
  request.set_tensor_parallel_size(2);
  request.set_pipeline_parallel_size(2);
  auto reader = ranks_[0]->stub()->LoadShard(&context, request);
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("rank 4 is not in 0..3 of 2 stages of 2 shards"));
}

TEST_F(RankServiceTest, TwoPlansMayBeUnderWay) {
  StartRanks(1);
  LoadAndJoin("router", 1);
  PlanStream stream(ranks_[0].get());
  ASSERT_TRUE(stream.Write(PromptPlan("router", 1, 1)));
  ASSERT_TRUE(stream.Write(DecodePlanOf("router", 1, 2)));
  v1::ExecuteResponse response;
  for (uint64_t step : {1, 2}) {
    ASSERT_TRUE(stream.Read(&response));
    EXPECT_EQ(response.step(), step);
  }
}

TEST_F(RankServiceTest, APlanOfAnotherEpochTouchesNothing) {
  StartRanks(1);
  LoadAndJoin("router", 3);
  PlanStream older(ranks_[0].get(), "router/2");
  EXPECT_EQ(older.Finish().error_code(), grpc::StatusCode::ABORTED);
  PlanStream stale(ranks_[0].get(), "router/3");
  ASSERT_TRUE(stale.Write(PromptPlan("router", 2, 1)));
  v1::ExecuteResponse response;
  EXPECT_FALSE(stale.Read(&response));
  const grpc::Status status = stale.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("router/2"));
  JoinAll("router", 4);
  PlanStream good(ranks_[0].get(), "router/4");
  ASSERT_TRUE(good.Write(PromptPlan("router", 4, 1)));
  EXPECT_TRUE(good.Read(&response));
}

TEST_F(RankServiceTest, APlanThatDoesNotFitIsRefusedWithTheLimit) {
  StartRanks(1);
  LoadAndJoin("router", 1);
  PlanStream stream(ranks_[0].get());
  v1::StepPlan plan = PromptPlan("router", 1, 1);
  plan.mutable_starts(0)->set_block_ids(0, 1000000);
  ASSERT_TRUE(stream.Write(plan));
  v1::ExecuteResponse response;
  EXPECT_FALSE(stream.Read(&response));
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("block 1000000"));
}

TEST_F(RankServiceTest, EpochsOnlyGrowAndAGroupHasOneOwner) {
  StartRanks(1);
  EXPECT_EQ(Join(0, "router", 1).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  LoadAndJoin("router", 5);
  EXPECT_EQ(Join(0, "router", 5).error_code(), grpc::StatusCode::ABORTED);
  const auto expect_refused = [&] {
    const grpc::Status other = Join(0, "another", 6);
    EXPECT_EQ(other.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(other.error_message(), HasSubstr("owned by router,"));
  };
  expect_refused();  // its stream is about to come
  PlanStream stream(ranks_[0].get(), "router/5");
  ASSERT_TRUE(stream.Write(PromptPlan("router", 5, 1)));
  v1::ExecuteResponse response;
  ASSERT_TRUE(stream.Read(&response));
  expect_refused();
  EXPECT_TRUE(Join(0, "another", 7, /*take_over=*/true).ok());
  // The old owner's plans do no harm any more.
  stream.Write(DecodePlanOf("router", 5, 2));
  EXPECT_FALSE(stream.Read(&response));
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::ABORTED);
}

// A router without requests sends no plans, and is the owner all the same.
TEST_F(RankServiceTest, AnIdleStreamOwnsTheRankUntilItEnds) {
  StartRanks(1);
  LoadAndJoin("router", 1);
  {
    PlanStream idle(ranks_[0].get());
    EXPECT_EQ(Join(0, "another", 2).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_TRUE(idle.Finish().ok());
  }
  while (ranks_[0]->health().is_ready()) std::this_thread::yield();
  EXPECT_TRUE(Join(0, "another", 2).ok());
}

TEST_F(RankServiceTest, ALostPeerEndsTheStepAndANewEpochWorks) {
  StartRanks(2);
  LoadAndJoin("router", 1);
  {
    PlanStream first(ranks_[0].get());
    PlanStream second(ranks_[1].get());
    const v1::StepPlan plan = PromptPlan("router", 1, 1);
    ASSERT_TRUE(first.Write(plan));  // rank 1 never gets it: rank 0 waits in a collective
    {
      // Its stream ends after one plan, and with it rank 1's part of the epoch.
      v1::StepPlan empty;
      *empty.mutable_epoch() = plan.epoch();
      ASSERT_TRUE(second.Write(empty));
      v1::ExecuteResponse response;
      ASSERT_TRUE(second.Read(&response));
      EXPECT_TRUE(second.Finish().ok());
    }
    v1::ExecuteResponse response;
    EXPECT_FALSE(first.Read(&response));
    EXPECT_FALSE(first.Finish().ok());
  }
  JoinAll("router", 2);
  PlanStream first(ranks_[0].get(), "router/2");
  PlanStream second(ranks_[1].get(), "router/2");
  const v1::StepPlan plan = PromptPlan("router", 2, 1);
  ASSERT_TRUE(first.Write(plan) && second.Write(plan));
  v1::ExecuteResponse response;
  EXPECT_TRUE(first.Read(&response));
  EXPECT_TRUE(second.Read(&response));
}

TEST_F(RankServiceTest, AbortWakesARankThatWaitsForItsPeer) {
  StartRanks(2);
  LoadAndJoin("router", 1);
  PlanStream first(ranks_[0].get());
  ASSERT_TRUE(first.Write(PromptPlan("router", 1, 1)));
  v1::AbortGroupRequest request;
  request.mutable_epoch()->set_owner_id("router");
  request.mutable_epoch()->set_counter(1);
  request.set_reason("the test says so");
  // The rank may not have reached the collective yet: its transport then fails when it does.
  grpc::ClientContext context;
  v1::AbortGroupResponse response;
  ASSERT_TRUE(ranks_[0]->stub()->AbortGroup(&context, request, &response).ok());
  v1::ExecuteResponse reply;
  EXPECT_FALSE(first.Read(&reply));
  EXPECT_THAT(first.Finish().error_message(), HasSubstr("the test says so"));
}

TEST_F(RankServiceTest, AbortEndsAJoinThatWaitsForItsPeer) {
  StartRanks(2);
  v1::ShardLimits limits;
  for (int rank : {0, 1}) ASSERT_TRUE(Load(rank, &limits).ok());
  for (const int rank : {0, 1}) {
    const uint64_t epoch = static_cast<uint64_t>(rank) + 1;
    grpc::Status joined;
    std::thread join([&] { joined = Join(rank, "router", epoch); });  // the other rank never comes
    v1::AbortGroupRequest request;
    request.mutable_epoch()->set_owner_id("router");
    request.mutable_epoch()->set_counter(epoch);
    grpc::Status aborted;
    do {  // until the join has begun
      grpc::ClientContext context;
      v1::AbortGroupResponse response;
      aborted = ranks_[rank]->stub()->AbortGroup(&context, request, &response);
    } while (!aborted.ok());
    join.join();
    EXPECT_THAT(joined.error_message(), HasSubstr("cancelled"));
  }
  JoinAll("router", 3);
}

TEST_F(RankServiceTest, ALaterJoinEndsOneThatWaits) {
  StartRanks(2);
  v1::ShardLimits limits;
  for (int rank : {0, 1}) ASSERT_TRUE(Load(rank, &limits).ok());
  grpc::Status first;
  std::thread join([&] { first = Join(0, "router", 1); });
  JoinAll("router", 2);  // may be the first to begin: then epoch 1 is refused
  join.join();
  EXPECT_FALSE(first.ok());
}

TEST_F(RankServiceTest, AFailedTakeOverLeavesTheRankToWhoComesNext) {
  StartRanks(2);
  LoadAndJoin("router", 1);
  PlanStream first(ranks_[0].get());
  PlanStream second(ranks_[1].get());
  ASSERT_TRUE(first.Write(PromptPlan("router", 1, 1)) && second.Write(PromptPlan("router", 1, 1)));
  v1::ExecuteResponse response;
  ASSERT_TRUE(first.Read(&response) && second.Read(&response));
  grpc::Status taken;
  std::thread take([&] { taken = Join(0, "thief", 2, /*take_over=*/true); });
  v1::AbortGroupRequest abort;
  abort.mutable_epoch()->set_owner_id("thief");
  abort.mutable_epoch()->set_counter(2);
  grpc::Status aborted;
  do {
    grpc::ClientContext context;
    v1::AbortGroupResponse unused;
    aborted = ranks_[0]->stub()->AbortGroup(&context, abort, &unused);
  } while (!aborted.ok());
  take.join();
  EXPECT_FALSE(taken.ok());
  first.Write(DecodePlanOf("router", 1, 2));
  EXPECT_FALSE(first.Read(&response));
  EXPECT_EQ(first.Finish().error_code(), grpc::StatusCode::ABORTED);
  second.Finish();
  JoinAll("router", 3);
}

TEST_F(RankServiceTest, NobodyIsServedWithoutTheClustersToken) {
  Rank rank(model_, 0, "a-secret");
  for (const char* token : {"", "a-secre", "b-secret", "a-secret"}) {
    SCOPED_TRACE(token);
    const auto want =
        std::string(token) == "a-secret" ? grpc::StatusCode::OK : grpc::StatusCode::UNAUTHENTICATED;
    const auto prepare = [token](grpc::ClientContext* context) {
      if (*token != 0) context->AddMetadata("shoal-cluster-token", token);
    };
    grpc::ClientContext info, description, inspect, join, execute;
    for (auto* context : {&info, &description, &inspect, &join, &execute}) prepare(context);
    v1::GetWorkerInfoResponse info_response;
    EXPECT_EQ(rank.stub()->GetWorkerInfo(&info, {}, &info_response).error_code(), want);
    v1::GetModelDescriptionResponse chunk;
    const auto chunks = rank.stub()->GetModelDescription(&description, {});
    while (chunks->Read(&chunk)) {
    }
    EXPECT_EQ(chunks->Finish().error_code(), want);
    v1::InspectResponse position;
    EXPECT_EQ(rank.stub()->Inspect(&inspect, {}, &position).error_code(), want);
    const bool is_let_in = want == grpc::StatusCode::OK;
    v1::JoinGroupResponse joined;
    EXPECT_EQ(rank.stub()->JoinGroup(&join, {}, &joined).error_code(),
              is_let_in ? grpc::StatusCode::FAILED_PRECONDITION : want);
    const auto stream = rank.stub()->Execute(&execute);  // which does not say its epoch
    stream->Write(v1::ExecuteRequest());                 // without a plan
    v1::ExecuteResponse reply;
    while (stream->Read(&reply)) {
    }
    EXPECT_EQ(stream->Finish().error_code(), is_let_in ? grpc::StatusCode::INVALID_ARGUMENT : want);
  }
}

TEST_F(RankServiceTest, IsReadyWhileAnEpochIsJoined) {
  StartRanks(1);
  const FakeHealth& health = ranks_[0]->health();
  EXPECT_TRUE(health.was_told() && !health.is_ready());
  v1::ShardLimits limits;
  ASSERT_TRUE(Load(0, &limits).ok());
  EXPECT_FALSE(health.is_ready()) << "loaded, but not warmed up";
  JoinAll("router", 1);
  EXPECT_TRUE(health.is_ready());
  PlanStream stream(ranks_[0].get());
  v1::ExecuteResponse response;
  ASSERT_TRUE(stream.Write(PromptPlan("router", 1, 1)) && stream.Read(&response));
  EXPECT_TRUE(health.is_ready());
  stream.Finish();
  v1::InspectResponse inspected;
  do {  // until the rank has seen the end of the stream
    grpc::ClientContext context;
    ASSERT_TRUE(ranks_[0]->stub()->Inspect(&context, {}, &inspected).ok());
  } while (inspected.state() != "loaded");
  EXPECT_FALSE(health.is_ready());
  JoinAll("router", 2);
  EXPECT_TRUE(health.is_ready());
}

TEST_F(RankServiceTest, DescribesItsModelInChunks) {
  StartRanks(1);
  grpc::ClientContext context;
  auto reader = ranks_[0]->stub()->GetModelDescription(&context, {});
  std::string bytes;
  v1::GetModelDescriptionResponse response;
  while (reader->Read(&response)) bytes += response.chunk();
  ASSERT_TRUE(reader->Finish().ok());
  v1::ModelDescription description;
  ASSERT_TRUE(description.ParseFromString(bytes));
  EXPECT_EQ(description.architecture(), "llama");
  EXPECT_EQ(description.vocabulary().tokens_size(), 520);
  EXPECT_EQ(description.vocabulary().bos_id(), -1);
  EXPECT_EQ(description.quantization(), "F32");
  EXPECT_NE(description.fingerprint(), 0u);
}

TEST_F(RankServiceTest, LoadingRefusesWhatItCannotServe) {
  StartRanks(1);
  grpc::ClientContext context;
  v1::LoadShardRequest request;
  request.set_kv_cache_dtype("int3");
  auto reader = ranks_[0]->stub()->LoadShard(&context, request);
  v1::LoadShardResponse response;
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("\"int3\" is not served"));
  EXPECT_THAT(status.error_message(), HasSubstr("f16, bf16, int8 or f32"));
}

}  // namespace
}  // namespace shoal::worker
