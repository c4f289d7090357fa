#include "router/frontend.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "tests/router/test_model.h"

namespace shoal::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// The fields that a status' BadRequest names, joined by commas; "" if it has none.
std::string BadFields(const absl::Status& status) {
  const auto payload = status.GetPayload("type.googleapis.com/google.rpc.BadRequest");
  google::rpc::BadRequest details;
  if (!payload.has_value() || !details.ParseFromString(std::string(*payload))) return "";
  std::string fields;
  for (const auto& violation : details.field_violations()) {
    if (!fields.empty()) fields += ",";
    fields += violation.field();
  }
  return fields;
}

class FrontendTest : public ::testing::Test {
 protected:
  FrontendTest() { request_.set_prompt("hi"); }

  absl::StatusOr<ValidRequest> Validate(const ServedModel& model) {
    const Frontend frontend({.max_prompt_bytes = 1000}, [this] { return ++random_; });
    return frontend.Validate(model, request_, now_, deadline_);
  }
  absl::StatusOr<ValidRequest> Validate() { return Validate(*model_); }

  // Expects INVALID_ARGUMENT at `field`, with `part` in the message.
  void ExpectRefused(const std::string& field, const std::string& part) {
    const auto result = Validate();
    ASSERT_FALSE(result.ok()) << request_.DebugString();
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << result.status();
    EXPECT_EQ(BadFields(result.status()), field) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(part));
  }

  std::shared_ptr<const ServedModel> model_ =
      MakeTestModel({.add_bos = false, .chat_template = kChatTemplate, .max_seq_len = 64});
  v1::GenerateRequest request_;
  const absl::Time now_ = absl::FromUnixSeconds(1000);
  absl::Time deadline_ = absl::InfiniteFuture();
  uint64_t random_ = 0;
};

TEST_F(FrontendTest, FillsInTheDocumentedDefaults) {
  const auto valid = Validate();
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_THAT(valid->prompt, ElementsAre(ByteToken('h'), ByteToken('i')));
  EXPECT_EQ(valid->max_tokens, 62u);  // up to the context
  EXPECT_EQ(valid->sampling.temperature, 1);
  EXPECT_EQ(valid->sampling.top_p, 1);
  EXPECT_EQ(valid->sampling.top_k, 0);
  EXPECT_EQ(valid->sampling.repetition_penalty, 1);
  EXPECT_EQ(valid->sampling.top_logprobs, -1);
  EXPECT_EQ(valid->num_choices, 1u);
  EXPECT_TRUE(valid->skip_special_tokens);
  EXPECT_EQ(valid->priority, Priority::kNormal);
  EXPECT_EQ(valid->arrival, now_);
}

TEST_F(FrontendTest, DrawsIdAndSeedOnlyWhereTheRequestHasNone) {
  const auto drawn = Validate();
  ASSERT_TRUE(drawn.ok());
  EXPECT_EQ(drawn->request_id, "req-00000000000000010000000000000002");
  EXPECT_EQ(drawn->sampling.seed, 3u);
  request_.set_request_id("mine");
  request_.mutable_sampling()->set_seed(0);
  const auto given = Validate();
  ASSERT_TRUE(given.ok());
  EXPECT_EQ(given->request_id, "mine");
  EXPECT_EQ(given->sampling.seed, 0u);
}

TEST_F(FrontendTest, RefusesSamplingOutOfRangeAndNaN) {
  struct Case {
    const char* field;
    std::function<void(v1::SamplingParams*, float)> set;
    std::vector<float> bad;
    std::vector<float> good;
  };
  const std::vector<Case> cases = {
      {"temperature",
       [](auto* s, float v) { s->set_temperature(v); },
       {-1, kNaN, kInf, 100.5f, -kInf},
       {0, 1e-7f, 1e-5f, 100}},
      {"top_p", [](auto* s, float v) { s->set_top_p(v); }, {0, 1.1f, kNaN, -0.1f}, {1e-6f, 1}},
      {"min_p", [](auto* s, float v) { s->set_min_p(v); }, {-0.1f, 1.1f, kNaN}, {0, 1}},
      {"repetition_penalty",
       [](auto* s, float v) { s->set_repetition_penalty(v); },
       {0, -1, kNaN, kInf, 101, 1e-45f, 0.009f},
       {0.01f, 100}},
      {"presence_penalty",
       [](auto* s, float v) { s->set_presence_penalty(v); },
       {-2.1f, 2.1f, kNaN},
       {-2, 2}},
      {"frequency_penalty",
       [](auto* s, float v) { s->set_frequency_penalty(v); },
       {-2.1f, 2.1f, kNaN},
       {-2, 2}},
      {"logit_bias",
       [](auto* s, float v) { (*s->mutable_logit_bias())[7] = v; },
       {-101, 101, kNaN, kInf},
       {-100, 100}},
      {"top_k",
       [](auto* s, float v) { s->set_top_k(static_cast<int>(v)); },
       {-2, -5},
       {-1, 0, 1e6f}},
  };
  for (const Case& c : cases) {
    for (const float value : c.bad) {
      SCOPED_TRACE(absl::StrCat(c.field, " ", value));
      request_.clear_sampling();
      c.set(request_.mutable_sampling(), value);
      ExpectRefused(absl::StrCat("sampling.", c.field), "");
    }
    for (const float value : c.good) {
      request_.clear_sampling();
      c.set(request_.mutable_sampling(), value);
      EXPECT_TRUE(Validate().ok()) << c.field << " " << value;
    }
  }
}

TEST_F(FrontendTest, NamesEveryBadFieldAtOnce) {
  request_.mutable_sampling()->set_temperature(kNaN);
  request_.mutable_sampling()->set_top_p(2);
  request_.set_n(65);
  ExpectRefused("sampling.temperature,sampling.top_p,n", "and 2 more faults");
}

TEST_F(FrontendTest, ListsSixteenFaultsAndCountsTheRest) {
  for (uint32_t i = 0; i < 20; ++i) request_.mutable_stop()->add_stop_token_ids(kVocabSize + i);
  const absl::Status status = Validate().status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("and 19 more faults"));
  const std::string fields = BadFields(status);
  EXPECT_EQ(std::count(fields.begin(), fields.end(), ','), 15);
}

TEST_F(FrontendTest, RefusesTokenIdsOutsideTheVocabulary) {
  for (const uint32_t id : {kVocabSize, kVocabSize + 20000, 1u << 31, ~0u}) {
    request_.mutable_token_ids()->clear_ids();
    request_.mutable_token_ids()->add_ids(5);
    request_.mutable_token_ids()->add_ids(id);
    ExpectRefused("token_ids", absl::StrCat("[1] = ", id));
  }
  request_.mutable_token_ids()->set_ids(1, kVocabSize - 1);
  EXPECT_TRUE(Validate().ok());

  request_.mutable_stop()->add_stop_token_ids(kVocabSize);
  request_.mutable_stop()->set_min_tokens(5);
  ExpectRefused("stop.stop_token_ids", "outside the vocabulary of 264");
  request_.clear_stop();
  (*request_.mutable_sampling()->mutable_logit_bias())[kVocabSize] = 1;
  ExpectRefused("sampling.logit_bias", "outside the vocabulary");
}

TEST_F(FrontendTest, RefusesAnEmptyPromptUnlessTheModelAddsBos) {
  request_.set_prompt("");
  ExpectRefused("input", "no tokens");
  request_.mutable_token_ids();
  ExpectRefused("input", "no tokens");
  request_.clear_input();
  ExpectRefused("input", "missing");

  request_.set_prompt("");
  const auto with_bos = MakeTestModel({.add_bos = true});
  const auto valid = Validate(*with_bos);
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_THAT(valid->prompt, ElementsAre(kBos));
  request_.set_add_special_tokens(false);
  EXPECT_FALSE(Validate(*with_bos).ok());
  request_.mutable_token_ids();
  EXPECT_FALSE(Validate(*with_bos).ok()) << "ids are taken as they are";
}

TEST_F(FrontendTest, RefusesAPromptThatLeavesNoRoomForOutput) {
  request_.set_prompt(std::string(63, 'x'));
  const auto fits = Validate();
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(fits->max_tokens, 1u);
  request_.set_prompt(std::string(64, 'x'));
  ExpectRefused("input", "64 tokens, at most 63");
  request_.mutable_stop()->set_max_tokens(0);  // wants no output
  EXPECT_TRUE(Validate().ok());
  request_.set_prompt(std::string(65, 'x'));
  ExpectRefused("input", "65 tokens, at most 64");
}

TEST_F(FrontendTest, RefusesTextThatCannotFitBeforeTokenisingIt) {
  request_.set_prompt(std::string(1000, 'x'));
  ExpectRefused("input", "at least 83 tokens");  // the longest token has 12 bytes
  request_.set_prompt(std::string(1001, 'x'));
  ExpectRefused("prompt", "1001 bytes, at most 1000");
}

TEST_F(FrontendTest, KeepsTheLastTokensOfATruncatedPrompt) {
  request_.set_prompt(std::string(500, 'x') + "abc");
  request_.set_truncate_prompt_tokens(4);
  const auto valid = Validate();
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_THAT(valid->prompt,
              ElementsAre(ByteToken('x'), ByteToken('a'), ByteToken('b'), ByteToken('c')));
  request_.set_truncate_prompt_tokens(0);
  ExpectRefused("truncate_prompt_tokens", "must be 1 or more");
}

TEST_F(FrontendTest, CutsMaxTokensToTheContextWithoutOverflow) {
  for (const uint32_t max_tokens : {62u, 63u, (1u << 31) - 1, 1u << 31, ~0u}) {
    request_.mutable_stop()->set_max_tokens(max_tokens);
    const auto valid = Validate();
    ASSERT_TRUE(valid.ok());
    EXPECT_EQ(valid->max_tokens, 62u);
  }
  request_.mutable_stop()->set_max_tokens(0);
  EXPECT_EQ(Validate()->max_tokens, 0u);
  request_.mutable_stop()->set_max_tokens(7);
  EXPECT_EQ(Validate()->max_tokens, 7u);
}

TEST_F(FrontendTest, ChecksStopParameters) {
  v1::StopParams* stop = request_.mutable_stop();
  stop->add_stop_strings("");
  ExpectRefused("stop.stop_strings", "0 bytes");
  stop->set_stop_strings(0, std::string(257, 's'));
  ExpectRefused("stop.stop_strings", "257 bytes");
  stop->clear_stop_strings();
  for (int i = 0; i < 17; ++i) stop->add_stop_strings("s");
  ExpectRefused("stop.stop_strings", "17 strings, at most 16");
  stop->Clear();
  for (int i = 0; i < 65; ++i) stop->add_stop_token_ids(1);
  ExpectRefused("stop.stop_token_ids", "65 ids, at most 64");
  stop->Clear();
  stop->set_min_tokens(6);
  stop->set_max_tokens(5);
  ExpectRefused("stop.min_tokens", "more than max_tokens 5");
  stop->clear_max_tokens();
  stop->set_min_tokens(63);
  ExpectRefused("stop.min_tokens", "has room for 62");
}

TEST_F(FrontendTest, BansEndsOnlyBelowMinTokens) {
  EXPECT_THAT(Validate()->sampling.end_ids, IsEmpty());
  request_.mutable_stop()->set_min_tokens(3);
  request_.mutable_stop()->add_stop_token_ids(9);
  EXPECT_THAT(Validate()->sampling.end_ids, ElementsAre(kEos, 9, kTurnEnd));
  request_.mutable_stop()->set_ignore_eos(true);
  EXPECT_THAT(Validate()->sampling.end_ids, ElementsAre(9));
}

TEST_F(FrontendTest, ChecksTheRequestsOwnFields) {
  request_.set_n(0);
  ExpectRefused("n", "is 0");
  request_.set_n(64);
  EXPECT_TRUE(Validate().ok());
  request_.clear_n();
  request_.set_top_logprobs(21);
  ExpectRefused("top_logprobs", "21");
  request_.clear_top_logprobs();
  request_.set_request_id("two words");
  ExpectRefused("request_id", "printable ASCII");
  request_.set_request_id(std::string(129, 'r'));
  ExpectRefused("request_id", "129 bytes");
  request_.set_request_id("");
  request_.set_cache_salt(std::string(257, 's'));
  ExpectRefused("cache_salt", "257 bytes");
  request_.set_cache_salt("");
  request_.set_priority(static_cast<v1::Priority>(9));
  ExpectRefused("priority", "9 is unknown");
}

TEST_F(FrontendTest, RefusesAnotherModelAndAPastDeadline) {
  request_.set_model("other");
  EXPECT_EQ(Validate().status().code(), absl::StatusCode::kNotFound);
  request_.set_model("test-model");
  EXPECT_TRUE(Validate().ok());
  deadline_ = now_;
  EXPECT_EQ(Validate().status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(FrontendTest, AModelWithoutANameAnswersToItsArchitecture) {
  worker::v1::ModelDescription description = DescribeTestModel();
  description.clear_name();
  const ServingFacts facts{
      .name = "", .numerics_id = "n", .load_time = absl::UnixEpoch(), .max_seq_len = 64};
  const auto model = MakeServedModel(description, facts);
  ASSERT_TRUE(model.ok()) << model.status();
  request_.set_model("llama");
  EXPECT_TRUE(Validate(**model).ok());
}

TEST_F(FrontendTest, OnlyTheTemplateMakesControlTokens) {
  v1::ChatMessage* message = request_.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("<|im_end|>");
  const auto valid = Validate();
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(std::count(valid->prompt.begin(), valid->prompt.end(), kTurnEnd), 1);
  EXPECT_EQ(std::count(valid->prompt.begin(), valid->prompt.end(), kTurnStart), 2);
  request_.mutable_chat()->set_add_generation_prompt(false);
  EXPECT_EQ(Validate()->prompt.size() + strlen("assistant\n") + 1, valid->prompt.size());
}

TEST_F(FrontendTest, PassesOnWhatTheTemplateRefuses) {
  request_.mutable_chat();
  ExpectRefused("chat.messages", "is empty");
  request_.mutable_chat()->add_messages()->set_role("tool");
  ExpectRefused("chat", "no tools here");
  model_ = MakeTestModel();
  ExpectRefused("chat", "no chat template");
}

// An empty message takes two bytes of a request and a hundred times that in memory.
TEST_F(FrontendTest, BoundsTheNumberOfMessagesAndToolCalls) {
  for (int i = 0; i < (1 << 16) - 1; ++i) request_.mutable_chat()->add_messages();
  request_.set_truncate_prompt_tokens(8);
  EXPECT_TRUE(Validate().ok()) << Validate().status();
  request_.mutable_chat()->mutable_messages(0)->add_tool_calls();
  EXPECT_TRUE(Validate().ok()) << Validate().status();
  request_.mutable_chat()->mutable_messages(0)->add_tool_calls();
  ExpectRefused("chat", "65537 messages, tools and tool calls together, at most 65536");
}

TEST_F(FrontendTest, ResumesOnlyWhatCanBeContinuedExactly) {
  request_.add_generated_token_ids(ByteToken('a'));
  ExpectRefused("sampling.seed", "needed to resume");
  request_.mutable_sampling()->set_temperature(0);
  EXPECT_TRUE(Validate().ok()) << "greedy needs no seed";
  request_.mutable_sampling()->set_temperature(1);
  request_.mutable_sampling()->set_seed(5);
  const auto valid = Validate();
  ASSERT_TRUE(valid.ok());
  EXPECT_THAT(valid->generated, ElementsAre(ByteToken('a')));
  EXPECT_EQ(valid->max_tokens, 62u) << "the resumed tokens are part of it";
  request_.set_n(2);
  ExpectRefused("n", "only one choice can be resumed");
  request_.clear_n();
  request_.add_generated_token_ids(kVocabSize);
  ExpectRefused("generated_token_ids", "outside the vocabulary");
  request_.set_generated_token_ids(1, kEos);
  EXPECT_TRUE(Validate().ok()) << "an end may be last";
  request_.add_generated_token_ids(ByteToken('b'));
  ExpectRefused("generated_token_ids", "ends a stream");
  request_.mutable_stop()->set_ignore_eos(true);
  EXPECT_TRUE(Validate().ok());
  for (int i = 0; i < 60; ++i) request_.add_generated_token_ids(ByteToken('c'));
  ExpectRefused("generated_token_ids", "has room for 62");
  request_.add_generated_token_ids(kVocabSize);
  request_.add_generated_token_ids(kVocabSize);
  ExpectRefused("generated_token_ids", "has 65 tokens, the context holds 64");
}

TEST_F(FrontendTest, TokenisesAndBack) {
  const Frontend frontend({.max_prompt_bytes = 20}, [] { return 0; });
  v1::TokenizeRequest tokenize;
  tokenize.set_text("a<|im_end|>");
  EXPECT_EQ(frontend.Tokenize(*model_, tokenize)->ids_size(), 11);
  tokenize.set_parse_special(true);
  const auto special = frontend.Tokenize(*model_, tokenize);
  EXPECT_THAT(special->ids(), ElementsAre(ByteToken('a'), kTurnEnd));
  EXPECT_THAT(special->pieces(), ElementsAre("a", "<|im_end|>"));
  tokenize.set_text(std::string(21, 'x'));
  EXPECT_EQ(BadFields(frontend.Tokenize(*model_, tokenize).status()), "text");

  v1::DetokenizeRequest detokenize;
  detokenize.add_ids(ByteToken('a'));
  detokenize.add_ids(kTurnEnd);
  EXPECT_EQ(frontend.Detokenize(*model_, detokenize)->text(), "a");
  detokenize.set_skip_special_tokens(false);
  EXPECT_EQ(frontend.Detokenize(*model_, detokenize)->text(), "a<|im_end|>");
  detokenize.add_ids(kVocabSize);
  EXPECT_EQ(BadFields(frontend.Detokenize(*model_, detokenize).status()), "ids");
  detokenize.clear_ids();
  for (int i = 0; i < 20; ++i) detokenize.add_ids(ByteToken('a'));
  EXPECT_EQ(frontend.Detokenize(*model_, detokenize)->text(), std::string(20, 'a'));
  detokenize.add_ids(ByteToken('a'));
  const absl::Status too_long = frontend.Detokenize(*model_, detokenize).status();
  EXPECT_THAT(std::string(too_long.message()), HasSubstr("21 bytes of text, at most 20"));
}

TEST_F(FrontendTest, AppliesAChatTemplate) {
  const Frontend frontend({}, [] { return 0; });
  v1::ApplyChatTemplateRequest apply;
  apply.mutable_chat()->add_messages()->set_role("user");
  const auto applied = frontend.ApplyChatTemplate(*model_, apply, now_);
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_EQ(applied->prompt(), "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(applied->ids(0), kTurnStart);
}

}  // namespace
}  // namespace shoal::router
