#include "worker/rank_service.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/worker_engine/tiny_model.h"
#include "worker/execute_loop.h"

namespace shoal::worker {
namespace {

using testing::HasSubstr;

// A tiny model with the metadata that a router asks for.
std::string WriteModel(const std::filesystem::path& path) {
  model::GgufDocument document = MakeTinyDocument({});
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  for (int i = 0; i < 520; ++i) {
    tokens.push_back(absl::StrCat("t", i));
    types.push_back(1);
  }
  if (document.Find("tokenizer.ggml.tokens") == nullptr) {
    document.AddString("tokenizer.ggml.model", "gpt2");
    document.AddString("tokenizer.ggml.pre", "gpt-2");
    document.AddStringArray("tokenizer.ggml.tokens", tokens);
    document.AddI32Array("tokenizer.ggml.token_type", types);
    document.AddU32("tokenizer.ggml.eos_token_id", 2);
    document.AddString("tokenizer.chat_template", "{{ messages[0].content }}");
  }
  std::ofstream(path, std::ios::binary) << document.Serialize();
  return path.string();
}

absl::StatusOr<std::unique_ptr<kernels::Backend>> OneThread() {
  kernels::CpuOptions options;
  options.threads = 1;
  return kernels::NewCpuBackend(options);
}

// What the rank says of itself.
class FakeHealth final : public grpc::HealthCheckServiceInterface {
 public:
  void SetServingStatus(const std::string& service, bool is_serving) override {
    CHECK_EQ(service, "readiness") << "liveness is gRPC's own";
    is_ready_ = is_serving;
    was_told_ = true;
  }
  void SetServingStatus(bool) override { LOG(FATAL) << "liveness is gRPC's own"; }
  void Shutdown() override {}

  bool was_told() const { return was_told_; }
  bool is_ready() const { return is_ready_; }

 private:
  std::atomic<bool> was_told_ = false;
  std::atomic<bool> is_ready_ = false;
};

// One rank: its server, its loop, a stub.
class Rank {
 public:
  Rank(const std::string& model, int index, const std::string& token = "") {
    RankOptions options;
    options.token = token;
    options.worker_id = absl::StrCat("rank-", index);
    options.version = "test";
    options.model_path = model;
    options.spin = false;
    options.new_backend = [] { return OneThread(); };
    auto service = RankService::Create(std::move(options));
    CHECK(service.ok()) << service.status();
    service_ = *std::move(service);
    grpc::ServerBuilder builder;
    const std::string address = absl::StrCat("unix-abstract:rank-service-test-", getpid(), "-",
                                             index, "-", reinterpret_cast<uintptr_t>(this));
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(service_.get());
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    service_->AttachHealth(&health_);
    loop_ = std::make_unique<ExecuteLoop>(service_.get(), queue_.get());
    thread_ = std::thread([this] { loop_->Run(); });
    stub_ = v1::WorkerService::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  }

  ~Rank() {
    service_->Abort(absl::UnavailableError("the test ends"));
    server_->Shutdown(std::chrono::system_clock::now());
    loop_->Shutdown();
    thread_.join();
  }

  v1::WorkerService::Stub* stub() { return stub_.get(); }
  const FakeHealth& health() const { return health_; }

 private:
  FakeHealth health_;
  std::unique_ptr<RankService> service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ExecuteLoop> loop_;
  std::thread thread_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
};

class RankServiceTest : public testing::Test {
 protected:
  RankServiceTest()
      : folder_(std::filesystem::temp_directory_path() /
                absl::StrCat("shoal-rank-service-", getpid())) {
    std::filesystem::create_directories(folder_);
    model_ = WriteModel(folder_ / "tiny.gguf");
  }
  ~RankServiceTest() override { std::filesystem::remove_all(folder_); }

  void StartRanks(int tp) {
    for (int i = 0; i < tp; ++i) ranks_.push_back(std::make_unique<Rank>(model_, i));
  }

  grpc::Status Load(int rank, v1::ShardLimits* limits) {
    grpc::ClientContext context;
    v1::LoadShardRequest request;
    request.set_rank(rank);
    request.set_tensor_parallel_size(ranks_.size());
    request.set_kv_cache_bytes(1 << 20);
    request.set_max_batch_tokens(64);
    request.set_max_batch_seqs(4);
    request.set_max_seq_len(128);
    auto reader = ranks_[rank]->stub()->LoadShard(&context, request);
    v1::LoadShardResponse response;
    while (reader->Read(&response)) {
    }
    *limits = response.limits();
    return reader->Finish();
  }

  grpc::Status Join(int rank, const std::string& owner, uint64_t counter, bool take_over = false) {
    grpc::ClientContext context;
    v1::JoinGroupRequest request;
    request.mutable_epoch()->set_owner_id(owner);
    request.mutable_epoch()->set_counter(counter);
    request.set_rendezvous(absl::StrCat("test-", getpid(), "-", owner, "-", counter));
    request.mutable_timeout()->set_seconds(20);
    request.set_take_over(take_over);
    v1::JoinGroupResponse response;
    return ranks_[rank]->stub()->JoinGroup(&context, request, &response);
  }

  // Loads every shard and joins an epoch.
  void LoadAndJoin(const std::string& owner, uint64_t counter) {
    v1::ShardLimits limits;
    for (size_t i = 0; i < ranks_.size(); ++i) ASSERT_TRUE(Load(i, &limits).ok());
    JoinAll(owner, counter);
  }

  void JoinAll(const std::string& owner, uint64_t counter) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      threads.emplace_back([&, i] {
        const grpc::Status status = Join(i, owner, counter);
        EXPECT_TRUE(status.ok()) << status.error_message();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::filesystem::path folder_;
  std::string model_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// An Execute stream to one rank.
class PlanStream {
 public:
  explicit PlanStream(Rank* rank) : stream_(rank->stub()->Execute(&context_)) {}

  bool Write(const v1::StepPlan& plan) {
    v1::ExecuteRequest request;
    *request.mutable_plan() = plan;
    return stream_->Write(request);
  }
  bool Read(v1::ExecuteResponse* response) { return stream_->Read(response); }
  grpc::Status Finish() {
    stream_->WritesDone();
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ExecuteRequest, v1::ExecuteResponse>> stream_;
};

v1::StepPlan PromptPlan(const std::string& owner, uint64_t counter, uint64_t step) {
  v1::StepPlan plan;
  plan.mutable_epoch()->set_owner_id(owner);
  plan.mutable_epoch()->set_counter(counter);
  plan.set_step(step);
  v1::SequenceStart* start = plan.add_starts();
  for (int id : {5, 7, 11, 13}) start->add_token_ids(id);
  start->set_num_prompt_tokens(4);
  start->add_block_ids(0);
  start->mutable_sampling()->set_top_p(1);
  start->mutable_sampling()->set_repetition_penalty(1);
  start->mutable_sampling()->set_top_logprobs(-1);
  v1::StepRow* row = plan.add_rows();
  row->set_num_tokens(4);
  row->set_source(v1::StepRow::SOURCE_LOG);
  row->set_outputs(v1::StepRow::OUTPUTS_LAST);
  return plan;
}

v1::StepPlan DecodePlanOf(const std::string& owner, uint64_t counter, uint64_t step) {
  v1::StepPlan plan = PromptPlan(owner, counter, step);
  plan.clear_starts();
  plan.mutable_rows(0)->set_num_tokens(1);
  plan.mutable_rows(0)->set_source(v1::StepRow::SOURCE_LAST_SAMPLE);
  return plan;
}

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

TEST_F(RankServiceTest, ATraceHasWholeStepsInTheirOrder) {
  StartRanks(1);
  v1::TraceRequest request;
  request.set_steps(2);
  request.mutable_timeout()->set_seconds(60);
  v1::TraceResponse response;
  {
    grpc::ClientContext context;
    EXPECT_EQ(ranks_[0]->stub()->Trace(&context, request, &response).error_code(),
              grpc::StatusCode::FAILED_PRECONDITION);
  }
  LoadAndJoin("router", 1);
  PlanStream stream(ranks_[0].get());
  std::atomic<bool> has_trace = false;
  std::thread tracer([&] {
    grpc::ClientContext context;
    const grpc::Status status = ranks_[0]->stub()->Trace(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    has_trace = true;
  });
  v1::ExecuteResponse reply;
  for (uint64_t step = 1; !has_trace; ++step) {
    v1::StepPlan plan = PromptPlan("router", 1, step);
    if (step > 1) plan.add_ended_slots(0);
    ASSERT_TRUE(stream.Write(plan) && stream.Read(&reply));
  }
  tracer.join();
  const shoal::v1::ProcessTrace& trace = response.trace();
  EXPECT_EQ(trace.process(), "rank-0");
  std::map<uint64_t, std::vector<std::string>> names;  // [step]
  std::map<uint64_t, shoal::v1::StepSpan> wholes;      // [step]
  int64_t last_begin_ns = 0;
  for (const shoal::v1::StepSpan& span : trace.spans()) {
    names[span.step()].push_back(trace.span_names(static_cast<int>(span.name())));
    if (names[span.step()].back() == "step") wholes[span.step()] = span;
    EXPECT_GE(span.begin_ns(), last_begin_ns);
    last_begin_ns = span.begin_ns();
  }
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(names.rbegin()->first, names.begin()->first + 1);
  for (const auto& [step, spans] : names) {
    // Once each: "receive", "step", the program's ops, "sample", "reply".
    ASSERT_EQ(static_cast<int>(spans.size()), trace.span_names_size());
    EXPECT_EQ(spans[0], "receive");
    EXPECT_EQ(spans[1], "step");
    EXPECT_EQ(spans[spans.size() - 2], "sample");
    EXPECT_EQ(spans.back(), "reply");
  }
  for (const shoal::v1::StepSpan& span : trace.spans()) {
    const std::string& name = trace.span_names(static_cast<int>(span.name()));
    if (name == "receive" || name == "reply") continue;
    const shoal::v1::StepSpan& whole = wholes[span.step()];
    EXPECT_GE(span.begin_ns(), whole.begin_ns()) << name;
    EXPECT_LE(span.begin_ns() + span.duration_ns(), whole.begin_ns() + whole.duration_ns()) << name;
  }
}

TEST_F(RankServiceTest, OneTraceAtATimeAndNoneThatNobodyAwaits) {
  StartRanks(1);
  LoadAndJoin("router", 1);
  // Ends at once, unless it is refused.
  const auto probe = [&](uint32_t steps) {
    v1::TraceRequest request;
    request.set_steps(steps);
    v1::TraceResponse response;
    grpc::ClientContext context;
    return ranks_[0]->stub()->Trace(&context, request, &response).error_code();
  };
  EXPECT_EQ(probe(0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(probe(1001), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(probe(1000), grpc::StatusCode::OK);
  std::atomic<grpc::ClientContext*> running = nullptr;
  std::thread patient([&] {
    v1::TraceRequest request;
    request.set_steps(1);
    request.mutable_timeout()->set_seconds(600);
    grpc::StatusCode code = grpc::StatusCode::FAILED_PRECONDITION;
    while (code == grpc::StatusCode::FAILED_PRECONDITION) {  // it met a probe
      grpc::ClientContext context;
      running = &context;
      v1::TraceResponse response;
      code = ranks_[0]->stub()->Trace(&context, request, &response).error_code();
    }
    EXPECT_EQ(code, grpc::StatusCode::CANCELLED);
  });
  while (probe(1) != grpc::StatusCode::FAILED_PRECONDITION) {
  }
  running.load()->TryCancel();
  patient.join();
  while (probe(1) != grpc::StatusCode::OK) {  // for 600 s, were it not for the cancel
  }
}

TEST_F(RankServiceTest, APlanOfAnotherEpochTouchesNothing) {
  StartRanks(1);
  LoadAndJoin("router", 3);
  PlanStream stale(ranks_[0].get());
  ASSERT_TRUE(stale.Write(PromptPlan("router", 2, 1)));
  v1::ExecuteResponse response;
  EXPECT_FALSE(stale.Read(&response));
  const grpc::Status status = stale.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("router/2"));
  PlanStream good(ranks_[0].get());
  ASSERT_TRUE(good.Write(PromptPlan("router", 3, 1)));
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
  PlanStream stream(ranks_[0].get());
  ASSERT_TRUE(stream.Write(PromptPlan("router", 5, 1)));
  v1::ExecuteResponse response;
  ASSERT_TRUE(stream.Read(&response));
  const grpc::Status other = Join(0, "another", 6);
  EXPECT_EQ(other.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(other.error_message(), HasSubstr("router"));
  EXPECT_TRUE(Join(0, "another", 7, /*take_over=*/true).ok());
  // The old owner's plans do no harm any more.
  stream.Write(DecodePlanOf("router", 5, 2));
  EXPECT_FALSE(stream.Read(&response));
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::ABORTED);
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
  PlanStream first(ranks_[0].get());
  PlanStream second(ranks_[1].get());
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
    const auto stream = rank.stub()->Execute(&execute);
    stream->Write(v1::ExecuteRequest());  // without a plan
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
