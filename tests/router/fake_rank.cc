#include "tests/router/fake_rank.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "grpcpp/server_builder.h"
#include "tests/router/test_model.h"

namespace shoal::router {
namespace {

namespace wire = worker::v1;

}  // namespace

FakeRank::FakeRank(std::string address, Options options)
    : address_(std::move(address)), options_(std::move(options)) {
  Start();
}

std::string FakeRank::NewAddress() {
  static std::atomic<int> count{0};
  return absl::StrCat("unix-abstract:shoal-test-", getpid(), "-", count.fetch_add(1));
}

void FakeRank::Start() {
  CHECK(server_ == nullptr);
  {
    base::MutexLock lock(&mutex_);
    ++instance_;
    is_killed_ = false;
    hangs_ = false;
    is_loaded_ = false;
    highest_epoch_ = 0;
  }
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr);
}

void FakeRank::Kill() {
  if (server_ == nullptr) return;
  {
    base::MutexLock lock(&mutex_);
    is_killed_ = true;
    changed_.SignalAll();
  }
  server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
}

void FakeRank::HoldReplies() {
  base::MutexLock lock(&mutex_);
  num_released_ = 0;
}

void FakeRank::ReleaseReplies(size_t count) {
  base::MutexLock lock(&mutex_);
  num_released_ = count;
  is_holding_ = false;
  changed_.SignalAll();
}

void FakeRank::WaitUntilHolding() {
  base::MutexLock lock(&mutex_);
  while (!is_holding_) changed_.Wait(&mutex_);
}

void FakeRank::WaitForPlans(size_t count) {
  base::MutexLock lock(&mutex_);
  while (num_plans_ < count) changed_.Wait(&mutex_);
}

void FakeRank::HangLoop() {
  base::MutexLock lock(&mutex_);
  hangs_ = true;
}

void FakeRank::DivergeOnce() {
  base::MutexLock lock(&mutex_);
  diverges_ = true;
}

size_t FakeRank::num_plans() const {
  base::MutexLock lock(&mutex_);
  return num_plans_;
}

size_t FakeRank::num_aborts() const {
  base::MutexLock lock(&mutex_);
  return num_aborts_;
}

std::vector<std::string> FakeRank::rendezvous() const {
  base::MutexLock lock(&mutex_);
  return rendezvous_;
}

uint32_t FakeRank::NextToken(absl::Span<const uint32_t> log, uint64_t seed, uint32_t choice) {
  uint64_t hash = base::CombineHash(seed, choice);
  for (const uint32_t id : log) hash = base::CombineHash(hash, id);
  return ByteToken(static_cast<char>('a' + hash % 26));
}

std::string FakeRank::Solo(const std::vector<uint32_t>& prompt, uint64_t seed, uint32_t choice,
                           uint32_t count) {
  std::vector<uint32_t> log = prompt;
  std::string text;
  for (uint32_t i = 0; i < count; ++i) {
    log.push_back(NextToken(log, seed, choice));
    text += static_cast<char>(log.back() - ByteToken('\0'));
  }
  return text;
}

grpc::Status FakeRank::GetWorkerInfo(grpc::ServerContext*, const wire::GetWorkerInfoRequest*,
                                     wire::GetWorkerInfoResponse* response) {
  base::MutexLock lock(&mutex_);
  response->set_worker_id("fake");
  response->set_instance_id(absl::StrCat(instance_));
  response->set_version(options_.version);
  response->set_protocol_version(1);
  response->set_backend("fake");
  response->set_numerics_id(is_loaded_ ? "fake-numerics/f16" : "fake-numerics");
  response->set_pid(1234);
  response->set_highest_epoch(highest_epoch_);
  response->set_model_fingerprint(options_.fingerprint);
  return grpc::Status::OK;
}

grpc::Status FakeRank::LoadShard(grpc::ServerContext*, const wire::LoadShardRequest* request,
                                 grpc::ServerWriter<wire::LoadShardResponse>* writer) {
  if (!options_.load_status.ok()) return options_.load_status;
  loaded_ = *request;
  {
    base::MutexLock lock(&mutex_);
    while (hangs_ && !is_killed_) changed_.Wait(&mutex_);
    is_loaded_ = true;
  }
  wire::LoadShardResponse response;
  response.set_loaded_bytes(500);
  response.set_total_bytes(1000);
  writer->Write(response);
  response.set_loaded_bytes(1000);
  wire::ShardLimits* limits = response.mutable_limits();
  limits->set_num_blocks(options_.num_blocks);
  limits->set_block_tokens(16);
  limits->set_kv_cache_bytes(request->kv_cache_bytes() > 0 ? request->kv_cache_bytes()
                                                           : kKvCacheBytes);
  limits->set_max_batch_tokens(options_.max_batch_tokens);
  limits->set_max_batch_seqs(options_.max_batch_seqs);
  limits->set_max_seq_len(options_.max_seq_len);
  writer->Write(response);
  return grpc::Status::OK;
}

grpc::Status FakeRank::GetModelDescription(
    grpc::ServerContext*, const wire::GetModelDescriptionRequest*,
    grpc::ServerWriter<wire::GetModelDescriptionResponse>* writer) {
  const std::string bytes = DescribeTestModel().SerializeAsString();
  wire::GetModelDescriptionResponse response;
  for (size_t begin = 0; begin < bytes.size(); begin += 100) {
    response.set_chunk(bytes.substr(begin, 100));
    writer->Write(response);
  }
  return grpc::Status::OK;
}

grpc::Status FakeRank::JoinGroup(grpc::ServerContext*, const wire::JoinGroupRequest* request,
                                 wire::JoinGroupResponse*) {
  base::MutexLock lock(&mutex_);
  if (request->epoch().counter() <= highest_epoch_) {
    return grpc::Status(grpc::StatusCode::ABORTED, "an old epoch");
  }
  highest_epoch_ = request->epoch().counter();
  rendezvous_.push_back(request->rendezvous());
  return grpc::Status::OK;
}

grpc::Status FakeRank::AbortGroup(grpc::ServerContext*, const wire::AbortGroupRequest*,
                                  wire::AbortGroupResponse*) {
  base::MutexLock lock(&mutex_);
  ++num_aborts_;
  return grpc::Status::OK;
}

void FakeRank::ApplyPlan(const wire::StepPlan& plan, Slots* slots, base::StateHash* hash,
                         wire::ExecuteResponse* response) {
  for (const uint32_t slot : plan.ended_slots()) {
    slots->erase(slot);
    hash->OnEnd(slot);
  }
  for (const wire::SequenceStart& start : plan.starts()) {
    Slot& slot = (*slots)[start.slot()];
    slot.log.assign(start.token_ids().begin(), start.token_ids().end());
    slot.position = start.num_cached_tokens();
    slot.sampling = start.sampling();
    hash->OnStart(start.slot(), start.num_cached_tokens(),
                  {start.block_ids().data(), static_cast<size_t>(start.block_ids_size())});
  }
  uint64_t token_hash = base::kTokenHashSeed;
  for (const wire::StepRow& row : plan.rows()) {
    Slot& slot = (*slots)[row.slot()];
    hash->OnBlocks(row.slot(),
                   {row.new_block_ids().data(), static_cast<size_t>(row.new_block_ids_size())});
    hash->OnAdvance(row.slot(), row.num_tokens());
    slot.position += row.num_tokens();
    wire::RowOutput* output = response->add_outputs();
    output->set_slot(row.slot());
    if (row.outputs() != wire::StepRow::OUTPUTS_NONE && slot.position == slot.log.size()) {
      slot.log.push_back(NextToken(slot.log, slot.sampling.seed(), slot.sampling.choice()));
      output->add_token_ids(slot.log.back());
    }
    token_hash = base::AddToTokenHash(
        token_hash, row.slot(),
        {output->token_ids().data(), static_cast<size_t>(output->token_ids_size())});
  }
  response->set_state_hash(hash->value());
  response->set_token_hash(token_hash);
}

// Plans are read while answers are held back, as a rank reads the next plan while a step runs.
grpc::Status FakeRank::Execute(grpc::ServerContext* context, Stream* stream) {
  Answers answers;
  std::thread writer([&] { WriteAnswers(context, stream, &answers); });
  Slots slots;
  base::StateHash hash;
  wire::ExecuteRequest request;
  while (stream->Read(&request)) {
    wire::ExecuteResponse response;
    *response.mutable_epoch() = request.plan().epoch();
    response.set_step(request.plan().step());
    ApplyPlan(request.plan(), &slots, &hash, &response);
    response.mutable_timings()->set_compute_ns(1000);
    base::MutexLock lock(&mutex_);
    ++num_plans_;
    answers.waiting.push_back(std::move(response));
    changed_.SignalAll();
  }
  {
    base::MutexLock lock(&mutex_);
    answers.is_over = true;
    changed_.SignalAll();
  }
  writer.join();
  base::MutexLock lock(&mutex_);
  return is_killed_ ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "killed") : grpc::Status::OK;
}

void FakeRank::WriteAnswers(grpc::ServerContext* context, Stream* stream, Answers* answers) {
  while (true) {
    wire::ExecuteResponse response;
    {
      base::MutexLock lock(&mutex_);
      while (answers->waiting.empty() && !answers->is_over && !is_killed_) changed_.Wait(&mutex_);
      is_holding_ = !answers->waiting.empty() && num_released_ == 0;
      changed_.SignalAll();
      while (num_released_ == 0 && !answers->is_over && !is_killed_) changed_.Wait(&mutex_);
      is_holding_ = false;
      if (is_killed_) context->TryCancel();
      if (is_killed_ || answers->waiting.empty()) return;
      if (num_released_ != kAll && num_released_ > 0) --num_released_;
      response = std::move(answers->waiting.front());
      answers->waiting.pop_front();
      if (std::exchange(diverges_, false)) response.set_state_hash(response.state_hash() + 1);
    }
    stream->Write(response);
  }
}

}  // namespace shoal::router
