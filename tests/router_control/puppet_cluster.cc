#include "tests/router_control/puppet_cluster.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::router {
namespace {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

// Of an answer.
uint32_t RankOf(const GroupEvent& event) {
  return std::visit(
      [](const auto& answer) -> uint32_t {
        if constexpr (requires { answer.rank; }) {
          return answer.rank;
        } else {
          return 0;
        }
      },
      event);
}

}  // namespace

std::string ToString(const GroupAction& action) {
  return std::visit(
      Overloaded{
          [](const ProbeRank& a) { return absl::StrCat("probe ", a.rank); },
          [](const JoinRank& a) { return absl::StrCat("join ", a.rank, " @", a.epoch); },
          [](const OpenStream& a) { return absl::StrCat("open ", a.rank, " @", a.epoch); },
          [](const SendPlan& a) { return absl::StrCat("send ", a.step, " @", a.epoch); },
          [](const AbortRank& a) { return absl::StrCat("abort ", a.rank, " @", a.epoch); },
          [](const CommitPlan& a) { return absl::StrCat("commit ", a.result.step); },
          [](const ReplayAll&) { return std::string("replay"); },
          [](const FailRequests& a) { return absl::StrCat("fail: ", a.status.message()); },
          [](const ReplaceRank& a) { return absl::StrCat("replace ", a.rank); },
      },
      action);
}

PuppetCluster::PuppetCluster(const GroupOptions& group_options, const SchedulerOptions& options)
    : options_(options),
      group_(group_options),
      scheduler_(options),
      processes_(group_options.tensor_parallel_size * group_options.pipeline_parallel_size) {
  for (Process& process : processes_) process.rank = std::make_unique<PuppetRank>(options);
  for (const GroupAction& action : group_.Start(now_)) CarryOut(action);
}

PuppetCluster::~PuppetCluster() {
  for (const Process& process : processes_) {
    EXPECT_THAT(process.rank->errors(), testing::IsEmpty());
  }
}

RankInfo PuppetCluster::Info(const SchedulerOptions& options, uint32_t rank) {
  RankInfo info;
  info.instance_id = absl::StrCat("process ", rank);
  info.version = "1";
  info.protocol_version = 1;
  info.model_fingerprint = "model";
  info.numerics_id = "cpu";
  info.num_blocks = options.num_blocks + rank;
  info.block_size = options.block_size;
  info.max_batch_tokens = options.max_batch_tokens;
  info.max_batch_seqs = options.max_batch_seqs;
  info.max_seq_len = options.max_seq_len;
  return info;
}

void PuppetCluster::Handle(const GroupEvent& event) {
  for (const GroupAction& action : group_.OnEvent(now_, event)) CarryOut(action);
}

// A dead or frozen rank answers nothing.
void PuppetCluster::Answer(uint32_t rank, GroupEvent event) {
  if (!processes_[rank].is_frozen) answers_.push_back(std::move(event));
}

void PuppetCluster::CarryOut(const GroupAction& action) {
  const absl::Status refused = absl::UnavailableError("connection refused");
  std::visit(Overloaded{
                 [&](const ProbeRank& a) {
                   if (!processes_[a.rank].is_alive || processes_[a.rank].is_frozen) {
                     answers_.push_back(RankFailed{a.rank, 0, refused});
                     return;
                   }
                   RankInfo info = Info(options_, a.rank);
                   info.highest_epoch = processes_[a.rank].epoch;
                   Answer(a.rank, RankAnswered{a.rank, info});
                 },
                 [&](const JoinRank& a) {
                   Process& process = processes_[a.rank];
                   EXPECT_GT(a.epoch, process.epoch) << "an old epoch comes back";
                   if (!process.is_alive)
                     return Answer(a.rank, RankFailed{a.rank, a.epoch, refused});
                   process.epoch = a.epoch;
                   process.rank->Restart();
                   Answer(a.rank, RankJoined{a.rank, a.epoch});
                 },
                 [&](const OpenStream& a) {
                   if (!processes_[a.rank].is_alive) {
                     return Answer(a.rank, RankFailed{a.rank, a.epoch, refused});
                   }
                   Answer(a.rank, StreamOpened{a.rank, a.epoch});
                 },
                 [&](const SendPlan& a) { SendToRanks(a); },
                 [&](const AbortRank& a) {
                   if (processes_[a.rank].is_frozen) Kill(a.rank);  // its supervisor does so
                 },
                 [&](const CommitPlan& a) {
                   const auto events = scheduler_.CommitStep(now_, a.result);
                   ASSERT_TRUE(events.ok()) << events.status();
                   Take(*events);
                   scheduler_.CheckInvariants();
                 },
                 [&](const ReplayAll&) {
                   plan_.reset();
                   Take(scheduler_.Reset(now_));
                   scheduler_.CheckInvariants();
                 },
                 [&](const FailRequests& a) { Take(scheduler_.FailAll(now_, a.status)); },
                 [&](const ReplaceRank& a) { Kill(a.rank); },
             },
             action);
}

// A rank only gets through a step when all its peers are there to meet.
void PuppetCluster::SendToRanks(const SendPlan& send) {
  for (const Process& process : processes_) {
    if (!process.is_alive || process.is_frozen || process.epoch != send.epoch) return;
  }
  for (uint32_t rank = 0; rank < processes_.size(); ++rank) {
    Process& process = processes_[rank];
    const StepResult result = process.rank->Execute(*plan_);
    ++process.num_steps;
    StepReplied reply{.rank = rank,
                      .epoch = send.epoch,
                      .step = send.step,
                      .state_hash = process.rank->state_hash(),
                      .token_hash = base::kTokenHashSeed,
                      .outputs = {}};
    if (std::exchange(process.is_corrupt, false)) ++reply.state_hash;
    for (const RowOutput& output : result.outputs) {
      reply.token_hash = base::AddToTokenHash(reply.token_hash, output.slot, output.token_ids);
    }
    if (rank == 0) reply.outputs = result.outputs;
    Answer(rank, std::move(reply));
  }
}

void PuppetCluster::Take(const std::vector<Event>& events) {
  for (const Event& event : events) {
    Outputs& outputs = outputs_[event.request_id];
    EXPECT_FALSE(outputs.outcome.has_value()) << "request " << event.request_id;
    outputs.token_ids.insert(outputs.token_ids.end(), event.token_ids.begin(),
                             event.token_ids.end());
    if (event.kind == Event::Kind::kFinished) outputs.outcome = event.outcome;
  }
}

bool PuppetCluster::Plan() {
  if (group_.state() != Group::State::kReady) return false;
  plan_ = scheduler_.PlanStep(now_);
  if (!plan_.has_value()) return false;
  Handle(PlanMade{plan_->step, plan_->state_hash, absl::ZeroDuration()});
  return true;
}

// The answers of one rank keep their order.
void PuppetCluster::Deliver(uint32_t choice) {
  const uint32_t rank = RankOf(answers_[choice % answers_.size()]);
  const auto answer =
      std::find_if(answers_.begin(), answers_.end(),
                   [rank](const GroupEvent& event) { return RankOf(event) == rank; });
  const GroupEvent event = std::move(*answer);
  answers_.erase(answer);
  Handle(event);
}

void PuppetCluster::Drain() {
  while (!answers_.empty()) Deliver(0);
}

bool PuppetCluster::Step(uint32_t choice) {
  if ((choice % 2 == 0 || answers_.empty()) && Plan()) return true;
  if (!answers_.empty()) {
    Deliver(choice);
    return true;
  }
  const absl::Time next = group_.NextDeadline();
  if (next == absl::InfiniteFuture()) return false;
  now_ = std::max(now_, next);
  Handle(TimerFired{});
  return true;
}

void PuppetCluster::RunUntilIdle(int max_steps) {
  while (max_steps > 0 && Step()) --max_steps;
  EXPECT_GT(max_steps, 0);
}

void PuppetCluster::Kill(uint32_t rank) {
  Process& process = processes_[rank];
  if (!process.is_alive) return;
  process.is_alive = false;
  process.is_frozen = false;
  answers_.push_back(StreamClosed{rank, process.epoch, absl::UnavailableError("end of file")});
}

void PuppetCluster::Restart(uint32_t rank) {
  Process& process = processes_[rank];
  if (process.is_alive) return;
  process.is_alive = true;
  process.epoch = 0;
  process.rank->Restart();
}

void PuppetCluster::Submit(const Request& request) {
  const absl::Status status = scheduler_.Submit(now_, request);
  EXPECT_TRUE(status.ok()) << status;
  requests_.push_back(request);
}

void PuppetCluster::ExpectAllSolo() {
  for (const Request& request : requests_) {
    const Outputs& outputs = outputs_[request.id];
    ASSERT_TRUE(outputs.outcome.has_value()) << "request " << request.id;
    EXPECT_TRUE(outputs.outcome->status.ok()) << outputs.outcome->status;
    EXPECT_EQ(outputs.token_ids, PuppetRank::Solo(request)) << "request " << request.id;
  }
}

}  // namespace shoal::router
