// Histories: what a RecordedControl writes plays again, step by step.

#include "router/replay.h"

#include <deque>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/delimited_message_util.h"
#include "gtest/gtest.h"
#include "router/history_codec.h"
#include "router/recorded_control.h"
#include "tests/router_control/puppet_rank.h"

namespace shoal::router {
namespace {

using testing::AllOf;
using testing::HasSubstr;

GroupControlOptions Options() {
  GroupControlOptions options;
  options.group.version = "1";
  options.group.protocol_version = 1;
  options.scheduler.num_blocks = 24;
  options.scheduler.block_size = 4;
  options.scheduler.max_batch_tokens = 32;
  options.scheduler.max_batch_seqs = 4;
  options.scheduler.max_seq_len = 96;
  options.scheduler.max_queued_requests = 6;
  return options;
}

history::v1::Header MakeHeader() {
  history::v1::Header header = ToProto(Options());
  header.set_format(kHistoryFormat);
  return header;
}

RankInfo Info() {
  const SchedulerOptions limits = Options().scheduler;
  RankInfo info;
  info.version = "1";
  info.protocol_version = 1;
  info.num_blocks = limits.num_blocks;
  info.block_size = limits.block_size;
  info.max_batch_tokens = limits.max_batch_tokens;
  info.max_batch_seqs = limits.max_batch_seqs;
  info.max_seq_len = limits.max_seq_len;
  return info;
}

// A recorded control with one puppet rank, which is lost now and then.
class RecordedGroup {
 public:
  RecordedGroup(const std::string& path, uint64_t limit)
      : control_(Options(), *HistoryRecorder::Create(path, limit, MakeHeader())),
        rank_(Options().scheduler) {
    control_.Start(now_);
    Join();
  }

  void Submit(uint32_t number) {
    std::vector<Request> choices(1 + number % 2);
    for (uint32_t i = 0; i < choices.size(); ++i) {
      Request& request = choices[i];
      request.id = 10 * number + i;
      for (uint32_t t = 0; t < 5 + number % 30; ++t) request.token_ids.push_back(t % 7);
      request.max_tokens = 1 + number % 12;
      request.sampling.seed = number;
      request.sampling.choice = i;
      request.sampling.temperature = 0.5;
      request.sampling.logit_bias = {{3, -1.5f}};
      request.sampling.prompt_logprobs = number % 5 == 0;
      request.sampling.top_logprobs = number % 4 == 0 ? 0 : -1;
      request.priority = static_cast<Priority>(number % 3);
      request.cache_salt = number % 6 == 0 ? "salt" : "";
      request.stop_token_ids = {number % 50};
      request.arrival = now_;
      if (number % 4 == 1) request.deadline = now_ + absl::Milliseconds(40);
    }
    if (!control_.Submit(now_, std::move(choices)).ok()) ++num_refused_;
  }
  void Cancel(uint32_t number) { control_.Cancel(now_, 10 * number, "by the test"); }
  void Finish(uint32_t number) { control_.Finish(now_, 10 * number); }
  void Lose() {
    control_.OnGroupEvent(now_, StreamClosed{0, epoch_, absl::UnavailableError("eof")});
    plans_.clear();
    rank_.Restart();
    Join();
  }
  // Whether anything was left to do.
  bool Step() {
    now_ += absl::Nanoseconds(7'654'321);
    control_.OnTimer(now_);
    while (control_.Plan(now_)) Take();
    Take();
    if (plans_.empty()) return false;
    const StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    StepReplied reply{0, epoch_, plan.step, 0, base::kTokenHashSeed, rank_.Execute(plan).outputs};
    reply.state_hash = rank_.state_hash();
    for (const RowOutput& output : reply.outputs) {
      reply.token_hash = base::AddToTokenHash(reply.token_hash, output.slot, output.token_ids);
    }
    control_.OnGroupEvent(now_, reply);
    return true;
  }
  void Flush() { control_.Flush(); }
  uint64_t num_steps() const { return control_.state().counters().num_steps; }
  int num_refused() const { return num_refused_; }

 private:
  void Join() {
    control_.OnGroupEvent(now_, RankAnswered{0, Info()});
    epoch_ = control_.state().group().epoch();
    control_.OnGroupEvent(now_, RankJoined{0, epoch_});
    control_.OnGroupEvent(now_, StreamOpened{0, epoch_});
    Take();
  }
  void Take() {
    for (ControlAction& action : control_.TakeActions()) {
      if (auto* step = std::get_if<SendStep>(&action)) plans_.push_back(std::move(step->plan));
    }
    control_.TakeEvents();
  }

  absl::Time now_ = absl::FromUnixNanos(1'700'000'000'123'456'789);
  RecordedControl control_;
  PuppetRank rank_;
  uint64_t epoch_ = 0;
  std::deque<StepPlan> plans_;
  int num_refused_ = 0;
};

class ReplayTest : public testing::Test {
 protected:
  ReplayTest() { std::filesystem::create_directory(folder_); }
  ~ReplayTest() override { std::filesystem::remove_all(folder_); }

  // Returns how many steps were committed.
  uint64_t Record(uint64_t limit = 1 << 30) {
    RecordedGroup group(path_, limit);
    std::mt19937 random(1);
    for (uint32_t i = 1; i <= 60; ++i) {
      group.Submit(i);
      if (random() % 6 == 0) group.Cancel(i);
      if (random() % 6 == 0) group.Finish(1 + random() % i);
      if (random() % 20 == 0) group.Lose();
      group.Step();
    }
    while (group.Step()) {
    }
    EXPECT_GT(group.num_refused(), 0);
    group.Flush();
    return group.num_steps();
  }

  std::string Bytes() {
    std::ifstream file(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  void Write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  ReplayResult MustReplay() {
    const absl::StatusOr<ReplayResult> result = Replay(path_);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(ReplayResult());
  }
  // Passes every record through `change`.
  void Rewrite(const std::function<void(history::v1::Record*)>& change) {
    const std::string bytes = Bytes();
    google::protobuf::io::ArrayInputStream in(bytes.data() + 8, static_cast<int>(bytes.size()) - 8);
    std::string changed = bytes.substr(0, 8);
    {
      google::protobuf::io::StringOutputStream out(&changed);
      history::v1::Header header;
      history::v1::Record record;
      using google::protobuf::util::ParseDelimitedFromZeroCopyStream;
      using google::protobuf::util::SerializeDelimitedToZeroCopyStream;
      ASSERT_TRUE(ParseDelimitedFromZeroCopyStream(&header, &in, nullptr));
      SerializeDelimitedToZeroCopyStream(header, &out);
      while (record.Clear(), ParseDelimitedFromZeroCopyStream(&record, &in, nullptr)) {
        change(&record);
        SerializeDelimitedToZeroCopyStream(record, &out);
      }
    }
    Write(changed);
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/replay_", getpid());
  const std::string path_ = folder_ + "/history";
};

TEST_F(ReplayTest, EveryPlanIsAsRecorded) {
  const uint64_t num_steps = Record();
  EXPECT_GT(num_steps, 50u);
  const ReplayResult result = MustReplay();
  EXPECT_EQ(result.difference, "");
  EXPECT_FALSE(result.is_truncated);
  EXPECT_EQ(result.num_requests, 60u);
  EXPECT_GE(result.num_plans, num_steps);
}

TEST_F(ReplayTest, OthersCannotReadItEvenWhereAFileWasBefore) {
  using std::filesystem::perms;
  for (const bool was_there : {false, true}) {
    if (was_there) std::filesystem::permissions(path_, perms::all);
    Record();
    EXPECT_EQ(std::filesystem::status(path_).permissions(), perms::owner_read | perms::owner_write);
  }
}

TEST_F(ReplayTest, AFileOfAKilledRouterReplaysUpToItsEnd) {
  Record();
  const std::string bytes = Bytes();
  uint64_t last = 0;
  for (size_t size = bytes.size() / 2; size < bytes.size(); size += 997) {
    Write(bytes.substr(0, size));
    const ReplayResult result = MustReplay();
    EXPECT_EQ(result.difference, "");
    EXPECT_GE(result.num_records, last);
    last = result.num_records;
  }
  Write(bytes.substr(0, bytes.size() - 1));
  EXPECT_TRUE(MustReplay().is_truncated);
}

TEST_F(ReplayTest, NamesTheStepAndFieldOfTheFirstDifference) {
  Record();
  int num_plans = 0;
  Rewrite([&num_plans](history::v1::Record* record) {
    if (!record->planning().has_plan() || ++num_plans != 20) return;
    worker::v1::StepRow* row = record->mutable_planning()->mutable_plan()->mutable_rows(0);
    row->set_num_tokens(row->num_tokens() + 5);
  });
  const ReplayResult result = MustReplay();
  EXPECT_EQ(result.num_plans, 20u);
  EXPECT_THAT(result.difference,
              AllOf(HasSubstr("step 20: "), HasSubstr("plan.rows[0].num_tokens")));
}

TEST_F(ReplayTest, AnotherAnswerOfARankIsAnotherHistory) {
  Record();
  int num_replies = 0;
  Rewrite([&num_replies](history::v1::Record* record) {
    if (!record->rank_event().has_replied() || ++num_replies != 10) return;
    auto* reply = record->mutable_rank_event()->mutable_replied();
    reply->set_state_hash(reply->state_hash() + 1);
  });
  EXPECT_NE(MustReplay().difference, "");
}

TEST_F(ReplayTest, AnotherAdmissionIsADifference) {
  Record();
  Rewrite([](history::v1::Record* record) {
    if (record->has_submission()) record->mutable_submission()->set_code(14);
  });
  EXPECT_THAT(MustReplay().difference, HasSubstr("request 10 is answered OK, not with code 14"));
}

TEST_F(ReplayTest, EndsAtItsLimit) {
  Record(/*limit=*/5000);
  EXPECT_LE(Bytes().size(), 5000u);
  EXPECT_GT(Bytes().size(), 4000u);
  const ReplayResult result = MustReplay();
  EXPECT_FALSE(result.is_truncated) << "at the end of a record";
  EXPECT_EQ(result.difference, "");
}

TEST_F(ReplayTest, WhatIsNoHistoryIsRefused) {
  EXPECT_THAT(Replay(path_).status().message(), HasSubstr("cannot read"));
  Write("GGUF and so on");
  EXPECT_THAT(Replay(path_).status().message(), HasSubstr("is no history"));
  Record();
  Write(Bytes().substr(0, 10));
  EXPECT_THAT(Replay(path_).status().message(), HasSubstr("ends in its header"));
}

TEST_F(ReplayTest, AnotherFormatIsRefused) {
  history::v1::Header header = MakeHeader();
  header.set_format(99);
  ASSERT_TRUE(HistoryRecorder::Create(path_, 1 << 20, header).ok());
  EXPECT_THAT(Replay(path_).status().message(),
              AllOf(HasSubstr("format 99"), HasSubstr("reads 1")));
}

TEST_F(ReplayTest, GarbageNeverCrashes) {
  Record();
  const std::string bytes = Bytes();
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string changed = bytes.substr(0, 4000);
    changed[8 + random() % (changed.size() - 8)] = static_cast<char>(random());
    Write(changed);
    static_cast<void>(Replay(path_));  // an error or not
  }
}

TEST_F(ReplayTest, AFolderThatIsNotThereEndsTheStart) {
  const auto recorder = HistoryRecorder::Create(folder_ + "/none/history", 1000, MakeHeader());
  EXPECT_THAT(recorder.status().message(), HasSubstr("cannot record to"));
}

}  // namespace
}  // namespace shoal::router
