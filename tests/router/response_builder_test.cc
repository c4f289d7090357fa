#include "router/response_builder.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router/test_model.h"

namespace shoal::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// What a client has of one choice.
struct Received {
  std::string text;
  std::vector<uint32_t> ids;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;

  friend bool operator==(const Received&, const Received&) = default;
};

std::ostream& operator<<(std::ostream& out, const Received& received) {
  return out << "\"" << received.text << "\", " << received.ids.size() << " ids, "
             << v1::FinishReason_Name(received.reason);
}

// Plays sequences into a builder: Tokens("ab"), Stop(kEos), Length(); Take() after each.
class ResponseBuilderTest : public ::testing::Test {
 protected:
  ResponseBuilderTest() {
    request_.prompt = ByteTokens("prompt");
    request_.max_tokens = 50;
    request_.return_token_ids = true;
    request_.request_id = "r";
    request_.sampling.seed = 9;
  }

  ResponseBuilder& builder() {
    if (builder_ == nullptr) builder_ = std::make_unique<ResponseBuilder>(model_.get(), &request_);
    return *builder_;
  }

  static Event MakeEvent(Event::Kind kind) {
    Event event;
    event.kind = kind;
    event.outcome.num_cached_tokens = 4;
    event.outcome.admitted = absl::Milliseconds(10);
    event.outcome.first_token = absl::Milliseconds(30);
    event.outcome.finished = absl::Milliseconds(70);
    return event;
  }
  // One token an event. Returns whether a stop string ended the choice.
  bool Tokens(const std::vector<uint32_t>& ids, uint32_t choice = 0) {
    for (const uint32_t id : ids) {
      Event event = MakeEvent(Event::Kind::kTokens);
      event.token_ids = {id};
      if (request_.sampling.top_logprobs >= 0) event.logprobs = {LogprobsOf(id)};
      if (builder().Add(choice, event)) return true;
    }
    return false;
  }
  bool Text(const std::string& text, uint32_t choice = 0) {
    return Tokens(ByteTokens(text), choice);
  }
  void Stop(uint32_t id, uint32_t choice = 0) {
    Event event = MakeEvent(Event::Kind::kFinished);
    event.outcome.reason = FinishReason::kStopToken;
    event.outcome.stop_token_id = id;
    if (request_.sampling.top_logprobs >= 0) event.outcome.stop_token_logprobs = {LogprobsOf(id)};
    builder().Add(choice, event);
  }
  void Length(uint32_t choice = 0) {
    Event event = MakeEvent(Event::Kind::kFinished);
    event.outcome.reason = FinishReason::kLength;
    builder().Add(choice, event);
  }
  static PositionLogprobs LogprobsOf(uint32_t id) {
    return {.chosen = {.token_id = id, .logprob = -0.5f},
            .top = {{.token_id = 7, .logprob = -0.25f}}};
  }

  // All that is pending, added to what the client has.
  Received Receive() {
    Received received;
    while (builder().has_pending()) {
      const v1::GenerateStreamResponse message = builder().Take();
      EXPECT_EQ(message.deltas_size(), 1);
      const v1::Choice& delta = message.deltas(0);
      received.text += delta.text();
      received.ids.insert(received.ids.end(), delta.token_ids().begin(), delta.token_ids().end());
      received.reason = delta.finish_reason();
    }
    return received;
  }

  std::shared_ptr<const ServedModel> model_ = MakeTestModel();
  ValidRequest request_;
  std::unique_ptr<ResponseBuilder> builder_;
};

TEST_F(ResponseBuilderTest, HoldsBackIncompleteCharacters) {
  const std::string emoji = "\xF0\x9F\x98\x80";
  Tokens({ByteToken(emoji[0])});
  EXPECT_EQ(Receive().text, "");
  Tokens({ByteToken(emoji[1]), ByteToken(emoji[2])});
  EXPECT_EQ(Receive().text, "");
  Tokens({ByteToken(emoji[3])});
  EXPECT_EQ(Receive().text, emoji);
}

TEST_F(ResponseBuilderTest, EndsAnIncompleteCharacterWithOneReplacement) {
  Text("a\xE2\x82");
  Length();
  const Received received = Receive();
  EXPECT_EQ(received.text, "a\xEF\xBF\xBD");
  EXPECT_EQ(received.ids.size(), 3u);
  EXPECT_EQ(received.reason, v1::FINISH_REASON_LENGTH);
}

// Decoding a whole text drops the space that the vocabulary puts before its first word; an answer
// continues the prompt.
TEST_F(ResponseBuilderTest, KeepsTheSpaceBeforeTheFirstWord) {
  model_ = MakeTestModel({.add_space_prefix = true});
  request_.prompt = {kWorld};
  Tokens({kWorld});
  EXPECT_EQ(Receive().text, " world");
  builder_.reset();
  request_.echo = true;
  Tokens({kWorld});
  EXPECT_EQ(Receive().text, "world world");
}

TEST_F(ResponseBuilderTest, EndsAtAStopStringThatSpansTokens) {
  request_.stop_strings = {"o wor"};
  EXPECT_FALSE(Tokens({ByteToken('>'), kHello}));
  EXPECT_TRUE(Tokens({kWorld}));
  EXPECT_TRUE(builder().all_done());
  EXPECT_FALSE(Text("never")) << "nothing comes after the end";
  const v1::GenerateStreamResponse message = builder().Take();
  EXPECT_EQ(message.deltas(0).text(), ">hell");
  EXPECT_EQ(message.deltas(0).finish_reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(message.deltas(0).stop_string(), "o wor");
  EXPECT_THAT(message.deltas(0).token_ids(), ElementsAre(ByteToken('>'), kHello, kWorld));
  EXPECT_EQ(message.usage().completion_tokens(), 3u) << "usage counts the ids returned";
}

TEST_F(ResponseBuilderTest, LeavesTheStopStringInIfAsked) {
  request_.stop_strings = {"o wor"};
  request_.include_stop_in_output = true;
  Tokens({kHello, kWorld});
  EXPECT_EQ(Receive().text, "hello wor");
}

TEST_F(ResponseBuilderTest, LosesNoTextThatWasHeldBackForAStopString) {
  request_.stop_strings = {"ENDQQ"};
  Tokens({kHello, kEnd});
  EXPECT_EQ(Receive().text, "hello");
  Stop(kEos);
  const Received rest = Receive();
  EXPECT_EQ(rest.text, "END");
  EXPECT_THAT(rest.ids, ElementsAre(kEos));
  EXPECT_EQ(rest.reason, v1::FINISH_REASON_STOP_TOKEN);
}

TEST_F(ResponseBuilderTest, KeepsTheTextOfAnEndTokenOut) {
  request_.skip_special_tokens = false;
  Tokens({kHello});
  Stop(kTurnEnd);
  EXPECT_EQ(Receive().text, "hello");
}

TEST_F(ResponseBuilderTest, ShowsAStopTokensTextOnlyIfAsked) {
  request_.stop_token_ids = {kWorld};
  request_.include_stop_in_output = true;
  Tokens({kHello});
  Stop(kWorld);
  EXPECT_EQ(Receive().text, "hello world");

  builder_.reset();
  request_.include_stop_in_output = false;
  Tokens({kHello});
  Stop(kWorld);
  const Received received = Receive();
  EXPECT_EQ(received.text, "hello");
  EXPECT_THAT(received.ids, ElementsAre(kHello, kWorld));
}

TEST_F(ResponseBuilderTest, MergesWhatWaitsIntoOneMessage) {
  Text("abc");
  const v1::GenerateStreamResponse message = builder().Take();
  EXPECT_EQ(message.deltas_size(), 1);
  EXPECT_EQ(message.deltas(0).text(), "abc");
  EXPECT_FALSE(builder().has_pending());
  EXPECT_EQ(builder().pending_bytes(), 0u);
}

TEST_F(ResponseBuilderTest, PutsSeedFirstAndTimingsLast) {
  Text("a");
  const v1::GenerateStreamResponse first = builder().Take();
  EXPECT_EQ(first.seed(), 9u);
  EXPECT_EQ(first.numerics_id(), "test-numerics");
  EXPECT_EQ(first.usage().prompt_tokens(), 6u);
  EXPECT_EQ(first.usage().cached_prompt_tokens(), 4u);
  EXPECT_FALSE(first.has_timings());
  Text("b");
  const v1::GenerateStreamResponse second = builder().Take();
  EXPECT_FALSE(second.has_seed());
  EXPECT_FALSE(second.has_usage());
  Length();
  const v1::GenerateStreamResponse last = builder().Take();
  EXPECT_EQ(last.usage().completion_tokens(), 2u);
  EXPECT_EQ(last.timings().queue().nanos(), 10'000'000);
  EXPECT_EQ(last.timings().prefill().nanos(), 20'000'000);
  EXPECT_EQ(last.timings().decode().nanos(), 40'000'000);
  EXPECT_EQ(last.timings().time_to_first_token().nanos(), 30'000'000);
}

TEST_F(ResponseBuilderTest, AlignsLogprobsWithTokens) {
  request_.sampling.top_logprobs = 1;
  Tokens({kHello});
  Stop(kEos);
  const v1::GenerateStreamResponse message = builder().Take();
  const v1::Choice& delta = message.deltas(0);
  ASSERT_EQ(delta.logprobs_size(), delta.token_ids_size());
  for (int i = 0; i < delta.logprobs_size(); ++i) {
    EXPECT_EQ(delta.logprobs(i).chosen().token_id(), delta.token_ids(i));
  }
  EXPECT_EQ(delta.logprobs(0).chosen().token_bytes(), "hello");
  EXPECT_EQ(delta.logprobs(0).top(0).logprob(), -0.25f);
}

TEST_F(ResponseBuilderTest, EchoesThePromptAndItsLogprobs) {
  request_.echo = true;
  request_.num_choices = 2;
  request_.sampling.top_logprobs = 0;
  request_.sampling.prompt_logprobs = true;
  EXPECT_FALSE(builder().has_pending()) << "usage is not known before the first event";
  Event event = MakeEvent(Event::Kind::kPromptLogprobs);
  for (size_t i = 1; i < request_.prompt.size(); ++i) {
    event.logprobs.push_back(LogprobsOf(request_.prompt[i]));
  }
  builder().Add(0, event);
  Tokens({kHello}, 0);
  Tokens({kWorld}, 1);
  const v1::GenerateStreamResponse message = builder().Take();
  EXPECT_EQ(message.deltas(0).text(), "prompthello");
  EXPECT_EQ(message.deltas(1).text(), "prompt world");
  ASSERT_EQ(message.deltas(0).prompt_logprobs_size(), 6);
  EXPECT_EQ(message.deltas(0).prompt_logprobs(0).chosen().logprob(), 0);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(message.deltas(0).prompt_logprobs(i).chosen().token_id(), request_.prompt[i]);
  }
  EXPECT_EQ(message.deltas(1).prompt_logprobs_size(), 0);
}

TEST_F(ResponseBuilderTest, EndsWhenTheLastChoiceEnds) {
  request_.num_choices = 2;
  Text("a", 1);
  Length(1);
  EXPECT_FALSE(builder().all_done());
  EXPECT_FALSE(builder().Take().has_timings());
  Text("b", 0);
  Stop(kEos, 0);
  EXPECT_TRUE(builder().all_done());
  const v1::GenerateStreamResponse last = builder().Take();
  EXPECT_TRUE(last.has_timings());
  EXPECT_EQ(last.usage().completion_tokens(), 3u);
  EXPECT_EQ(last.deltas_size(), 1);
  EXPECT_EQ(last.deltas(0).index(), 0u);
}

TEST_F(ResponseBuilderTest, AResumedStreamThatHadEndedEndsAtOnce) {
  request_.generated = {kHello, kEos};
  EXPECT_TRUE(builder().all_done());
  EXPECT_EQ(builder().Take().deltas(0).finish_reason(), v1::FINISH_REASON_STOP_TOKEN);

  builder_.reset();
  request_.sampling.min_tokens = 2;  // the end was banned, so it was no end
  EXPECT_FALSE(builder().all_done());

  builder_.reset();
  request_.generated = {kHello, kWorld};
  request_.max_tokens = 2;
  EXPECT_EQ(Receive(), (Received{"", {}, v1::FINISH_REASON_LENGTH}));

  builder_.reset();
  request_.max_tokens = 50;
  request_.stop_strings = {"llo"};
  EXPECT_EQ(Receive().reason, v1::FINISH_REASON_STOP_STRING);
}

// The strongest: whatever the stop strings, however a client's messages were cut, and wherever the
// stream broke and was resumed, the client has the same text, ids and reason.
TEST_F(ResponseBuilderTest, StreamsUnaryAndResumedAreEqual) {
  const std::vector<uint32_t> alphabet = {ByteToken('E'),
                                          ByteToken('N'),
                                          ByteToken('\xF0'),
                                          ByteToken('\x9F'),
                                          ByteToken('\x98'),
                                          ByteToken('\x80'),
                                          kHello,
                                          kEnd};
  const std::vector<std::vector<std::string>> stops = {
      {}, {"ENDE"}, {"N", "END"}, {"hello\xF0\x9F\x98\x80"}, {"lohe", "DE"}};
  uint64_t state = 1;
  const auto below = [&state](uint64_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % limit;
  };
  for (int round = 0; round < 300; ++round) {
    request_.stop_strings = stops[below(stops.size())];
    request_.include_stop_in_output = below(2) == 1;
    std::vector<uint32_t> ids;
    for (int i = 0; i < 12; ++i) ids.push_back(alphabet[below(alphabet.size())]);
    const auto end = [this](bool stopped) {
      if (!stopped) Stop(kEos);
    };
    request_.generated.clear();
    builder_.reset();
    end(Tokens(ids));
    const Received whole = Receive();
    ASSERT_NE(whole.reason, v1::FINISH_REASON_UNSPECIFIED);

    // Token by token, broken after `cut` tokens.
    for (size_t cut = 0; cut < whole.ids.size(); ++cut) {
      request_.generated.clear();
      builder_.reset();
      Received received;
      for (size_t i = 0; i < cut; ++i) {
        Tokens({ids[i]});
        const Received more = Receive();
        received.text += more.text;
        received.ids.insert(received.ids.end(), more.ids.begin(), more.ids.end());
      }
      request_.generated = received.ids;
      builder_.reset();
      const std::vector<uint32_t> rest(ids.begin() + cut, ids.end());
      end(Tokens(rest));
      const Received more = Receive();
      received.text += more.text;
      received.ids.insert(received.ids.end(), more.ids.begin(), more.ids.end());
      received.reason = more.reason;
      ASSERT_EQ(received, whole) << "round " << round << ", cut " << cut;
    }
  }
}

TEST(CollectTest, JoinsDeltasByChoice) {
  v1::GenerateResponse response;
  v1::GenerateStreamResponse message;
  message.set_request_id("r");
  message.set_seed(3);
  v1::Choice* delta = message.add_deltas();
  delta->set_index(1);
  delta->set_text("a");
  delta->add_token_ids(1);
  Collect(&message, &response);
  message.Clear();
  message.add_deltas()->set_index(0);
  delta = message.add_deltas();
  delta->set_index(1);
  delta->set_text("b");
  delta->add_token_ids(2);
  delta->set_finish_reason(v1::FINISH_REASON_LENGTH);
  message.mutable_usage()->set_completion_tokens(2);
  Collect(&message, &response);
  EXPECT_EQ(response.request_id(), "r");
  EXPECT_EQ(response.seed(), 3u);
  ASSERT_EQ(response.choices_size(), 2);
  EXPECT_EQ(response.choices(0).index(), 0u);
  EXPECT_EQ(response.choices(1).index(), 1u);
  EXPECT_EQ(response.choices(1).text(), "ab");
  EXPECT_THAT(response.choices(1).token_ids(), ElementsAre(1, 2));
  EXPECT_EQ(response.choices(1).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(response.usage().completion_tokens(), 2u);
}

}  // namespace
}  // namespace shoal::router
