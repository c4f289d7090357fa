#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/protocol_version.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/worker_engine/tiny_model.h"
#include "worker/execute_loop.h"
#include "worker/rank_service.h"

namespace shoal::worker {

// A tiny model with the metadata that a router asks for.
inline std::string WriteModel(const std::filesystem::path& path) {
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

inline absl::StatusOr<std::unique_ptr<kernels::Backend>> OneThread() {
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
  explicit PlanStream(Rank* rank, const std::string& epoch = "router/1") {
    context_.AddMetadata(base::kEpochKey, epoch);
    stream_ = rank->stub()->Execute(&context_);
  }

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

inline v1::StepPlan PromptPlan(const std::string& owner, uint64_t counter, uint64_t step) {
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

inline v1::StepPlan DecodePlanOf(const std::string& owner, uint64_t counter, uint64_t step) {
  v1::StepPlan plan = PromptPlan(owner, counter, step);
  plan.clear_starts();
  plan.mutable_rows(0)->set_num_tokens(1);
  plan.mutable_rows(0)->set_source(v1::StepRow::SOURCE_LAST_SAMPLE);
  return plan;
}

}  // namespace shoal::worker
