#include "router/request_stream.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/rpc_status.h"
#include "tests/router/puppet_engine.h"

namespace shoal::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Next = RequestStream::Next;

class RequestStreamTest : public ::testing::Test {
 protected:
  void Open(uint32_t num_choices = 1, size_t max_pending_bytes = 1 << 20) {
    ValidRequest request;
    request.request_id = "r";
    request.prompt = ByteTokens("p");
    request.max_tokens = 50;
    request.num_choices = num_choices;
    request.stop_strings = stop_strings_;
    request.generated = generated_;
    request.sampling.prompt_logprobs = true;
    stream_ = std::make_shared<RequestStream>(
        engine_.model(), std::move(request), &engine_, [this] { ++num_wakes_; },
        RequestStream::Options{.max_pending_bytes = max_pending_bytes});
    stream_->Start();
    if (engine_.num_submissions() > 0) first_ = engine_.WaitForSubmission(0)[0].id;
  }

  Next Poll() { return stream_->Poll(&message_); }

  PuppetEngine engine_;
  std::vector<std::string> stop_strings_;
  std::vector<uint32_t> generated_;
  std::shared_ptr<RequestStream> stream_;
  v1::GenerateStreamResponse message_;
  int num_wakes_ = 0;
  uint64_t first_ = 0;  // id of the first sequence
};

TEST_F(RequestStreamTest, SubmitsOneSequenceAChoice) {
  Open(3);
  const std::vector<Request> sequences = engine_.WaitForSubmission(0);
  ASSERT_EQ(sequences.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sequences[i].id, first_ + i);
    EXPECT_EQ(sequences[i].sampling.choice, i);
    EXPECT_EQ(sequences[i].sampling.prompt_logprobs, i == 0) << "once for all";
    EXPECT_EQ(sequences[i].num_prompt_tokens, 1u);
    EXPECT_THAT(sequences[i].eos_ids, ElementsAre(kEos, kTurnEnd));
  }
}

TEST_F(RequestStreamTest, SubmitsTheTokensOfAResumedStream) {
  generated_ = {kHello};
  Open();
  const Request sequence = engine_.WaitForSubmission(0)[0];
  EXPECT_THAT(sequence.token_ids, ElementsAre(ByteToken('p'), kHello));
  EXPECT_EQ(sequence.num_prompt_tokens, 1u);
  EXPECT_EQ(sequence.max_tokens, 50u);
}

TEST_F(RequestStreamTest, AResumedStreamThatHadEndedNeedsNoEngine) {
  generated_ = {kHello, kEos};
  Open();
  EXPECT_EQ(engine_.num_submissions(), 0u);
  EXPECT_EQ(Poll(), Next::kMessage);
  EXPECT_EQ(Poll(), Next::kEnd);
  EXPECT_TRUE(stream_->status().ok());
}

TEST_F(RequestStreamTest, WakesOnceForEachWait) {
  Open();
  engine_.Generate(first_, "a");
  EXPECT_EQ(num_wakes_, 0) << "nobody waits yet";
  EXPECT_EQ(Poll(), Next::kMessage);
  EXPECT_EQ(Poll(), Next::kWait);
  engine_.Generate(first_, "bc");
  EXPECT_EQ(num_wakes_, 1);
  EXPECT_EQ(Poll(), Next::kMessage);
  EXPECT_EQ(message_.deltas(0).text(), "bc");
}

TEST_F(RequestStreamTest, EndsOnceWithTheLastChoice) {
  Open(2);
  engine_.Generate(first_, "a");
  engine_.EndAtToken(first_);
  EXPECT_EQ(Poll(), Next::kMessage);
  EXPECT_EQ(Poll(), Next::kWait);
  engine_.EndAtLength(first_ + 1);
  EXPECT_EQ(Poll(), Next::kMessage);
  EXPECT_TRUE(message_.has_timings());
  EXPECT_EQ(Poll(), Next::kEnd);
  EXPECT_TRUE(stream_->status().ok());
  EXPECT_THAT(engine_.WaitForCancels(0), IsEmpty());
}

TEST_F(RequestStreamTest, AStopStringEndsTheSequenceAndNothingFollows) {
  stop_strings_ = {"END"};
  Open();
  engine_.Generate(first_, "xEND");
  engine_.Generate(first_, "late");  // of the step that was under way
  EXPECT_THAT(engine_.finished(), ElementsAre(first_));
  EXPECT_EQ(Poll(), Next::kMessage);
  EXPECT_EQ(message_.deltas(0).text(), "x");
  EXPECT_EQ(Poll(), Next::kEnd);
  EXPECT_TRUE(stream_->status().ok());
}

TEST_F(RequestStreamTest, OneFailedChoiceEndsAll) {
  Open(3);
  EXPECT_EQ(Poll(), Next::kWait);
  engine_.Generate(first_ + 1, "dropped");
  EXPECT_EQ(Poll(), Next::kMessage);
  EXPECT_EQ(Poll(), Next::kWait);
  engine_.Fail(first_, absl::InternalError("non-finite logits"));
  EXPECT_EQ(Poll(), Next::kEnd);
  EXPECT_EQ(stream_->status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(engine_.WaitForCancels(3), ElementsAre(first_, first_ + 1, first_ + 2));
}

TEST_F(RequestStreamTest, ARefusalEndsItWithARetryHint) {
  engine_.SetAdmission(absl::ResourceExhaustedError("queue full"));
  Open();
  EXPECT_EQ(Poll(), Next::kEnd);
  EXPECT_EQ(stream_->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LT(RetryAfter(stream_->status()), absl::Seconds(10));
  EXPECT_THAT(engine_.WaitForCancels(0), IsEmpty()) << "the engine knows nothing of it";
}

TEST_F(RequestStreamTest, CancelEndsItAtOnceAndFreesTheSequences) {
  Open(2);
  engine_.Generate(first_, "pending");
  EXPECT_EQ(Poll(), Next::kMessage);
  EXPECT_EQ(Poll(), Next::kWait);
  stream_->Cancel(absl::CancelledError("gone"));
  stream_->Cancel(absl::InternalError("too late"));
  EXPECT_EQ(num_wakes_, 1);
  EXPECT_THAT(engine_.WaitForCancels(2), ElementsAre(first_, first_ + 1));
  engine_.Generate(first_, "ignored");
  engine_.Fail(first_, absl::CancelledError("gone"), FinishReason::kCancelled);
  EXPECT_EQ(Poll(), Next::kEnd);
  EXPECT_EQ(stream_->status().message(), "gone");
}

TEST_F(RequestStreamTest, ASlowReaderEndsOnlyItsOwnRequest) {
  Open(1, /*max_pending_bytes=*/1000);
  engine_.Generate(first_, std::string(500, 'a'));
  EXPECT_THAT(engine_.WaitForCancels(0), IsEmpty());
  engine_.Generate(first_, std::string(600, 'a'));
  EXPECT_THAT(engine_.WaitForCancels(1), ElementsAre(first_));
  EXPECT_EQ(Poll(), Next::kEnd);
  EXPECT_EQ(stream_->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(stream_->status().message()), HasSubstr("the limit is 1000"));
  EXPECT_EQ(RetryAfter(stream_->status()), absl::InfiniteDuration()) << "a retry would not help";
}

TEST_F(RequestStreamTest, AReaderThatKeepsUpIsNeverTooSlow) {
  Open(1, /*max_pending_bytes=*/1000);
  for (int i = 0; i < 20; ++i) {
    engine_.Generate(first_, std::string(500, 'a'));
    EXPECT_EQ(Poll(), Next::kMessage);
  }
  engine_.EndAtLength(first_);
  EXPECT_EQ(Poll(), Next::kMessage);
  EXPECT_EQ(message_.usage().completion_tokens(), 10000u);
  EXPECT_EQ(Poll(), Next::kEnd);
}

// As many logprobs as a long prompt has come with one step, before a client could read any.
TEST_F(RequestStreamTest, LogprobsOfALongPromptAreNoSlowReaderAndComeInSeveralMessages) {
  constexpr int kPositions = 3000;
  Open(1, /*max_pending_bytes=*/1 << 20);
  const PositionLogprobs position{.chosen = {.token_id = kHello, .logprob = -1},
                                  .top = std::vector<TokenLogprob>(20, {kHello, -1})};
  stream_->OnEvent({.kind = Event::Kind::kPromptLogprobs,
                    .request_id = first_,
                    .token_ids = {},
                    .logprobs = std::vector<PositionLogprobs>(kPositions, position),
                    .outcome = {}});
  engine_.Generate(first_, "ab");
  EXPECT_THAT(engine_.WaitForCancels(0), IsEmpty());
  int num_positions = 0, num_messages = 0;
  std::string text;
  const auto read = [&] {
    ASSERT_EQ(Poll(), Next::kMessage);
    ++num_messages;
    EXPECT_LT(message_.ByteSizeLong(), 2u << 20);
    for (const v1::Choice& delta : message_.deltas()) {
      num_positions += delta.prompt_logprobs_size();
      text += delta.text();
    }
  };
  read();
  engine_.EndAtLength(first_);
  while (!message_.has_timings()) ASSERT_NO_FATAL_FAILURE(read());
  EXPECT_EQ(num_positions, kPositions);
  EXPECT_GE(num_messages, 3);
  EXPECT_EQ(text, "ab");
  EXPECT_EQ(Poll(), Next::kEnd);
  EXPECT_TRUE(stream_->status().ok());
}

TEST_F(RequestStreamTest, ShowsItsProgress) {
  Open();
  EXPECT_TRUE(stream_->progress().is_queued);
  engine_.Generate(first_, "ab");
  EXPECT_FALSE(stream_->progress().is_queued);
  EXPECT_EQ(stream_->progress().num_generated_tokens, 2u);
}

}  // namespace
}  // namespace shoal::router
