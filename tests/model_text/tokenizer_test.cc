#include "model/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "model/text/pretokenizer.h"
#include "tests/model_text/tokenizer_vocabularies.h"

namespace shoal::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using std::string_literals::operator""s;

std::unique_ptr<Tokenizer> Make(const Vocabulary& vocabulary) {
  auto tokenizer = Tokenizer::Create(vocabulary);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::string Refusal(const Vocabulary& vocabulary) {
  const auto tokenizer = Tokenizer::Create(vocabulary);
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(tokenizer.status().message());
}

// A chat vocabulary with a merge across the end of a role.
Vocabulary Chat() {
  Vocabulary vocabulary = SmallBpe({"h i", "\u0120 hi", "u s"});
  vocabulary.bos_id = IdOf(vocabulary, "<|endoftext|>");
  return vocabulary;
}

class ChatTokenizerTest : public ::testing::Test {
 protected:
  std::vector<std::string> Tokens(const std::vector<TextSpan>& spans, bool add_special = false) {
    const auto ids = tokenizer_->EncodeSpans(spans, add_special);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return Names(*ids);
  }

  std::vector<std::string> Tokens(absl::string_view text, Tokenizer::Options options) {
    const auto ids = tokenizer_->Encode(text, options);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return Names(*ids);
  }

  // Control and user-defined tokens in brackets.
  std::vector<std::string> Names(const std::vector<int32_t>& ids) {
    std::vector<std::string> names;
    for (const int32_t id : ids) {
      const std::string& bytes = tokenizer_->TokenBytes(id);
      names.push_back(vocabulary_.type(id) == TokenType::kNormal ? bytes
                                                                 : absl::StrCat("[", bytes, "]"));
    }
    return names;
  }

  const Vocabulary vocabulary_ = Chat();
  const std::unique_ptr<Tokenizer> tokenizer_ = Make(vocabulary_);
};

TEST_F(ChatTokenizerTest, ControlTokensArePlainTextUnlessParsed) {
  EXPECT_THAT(Tokens("<|im_end|>", {.parse_special = true}), ElementsAre("[<|im_end|>]"));
  EXPECT_THAT(Tokens("<|im_end|>", {}),
              ElementsAre("<", "|", "i", "m", "_", "e", "n", "d", "|", ">"));
}

TEST_F(ChatTokenizerTest, UserDefinedTokensAreMatchedEverywhere) {
  EXPECT_THAT(Tokens("a<think>b", {}), ElementsAre("a", "[<think>]", "b"));
  EXPECT_THAT(Tokens({{"a<th", true}, {"ink>b", false}}), ElementsAre("a", "[<think>]", "b"));
}

TEST_F(ChatTokenizerTest, ABoundaryBetweenTemplateAndUserChangesNoMerge) {
  const std::vector<std::string> joined = {"[<|im_start|>]", "us", "e", "r", ":", " hi",
                                           "[<|im_end|>]"};
  EXPECT_EQ(Tokens({{"<|im_start|>user: ", true}, {"hi", false}, {"<|im_end|>", true}}), joined);
  EXPECT_EQ(Tokens({{"<|im_start|>u", true}, {"ser: h", false}, {"i<|im_end|>", true}}), joined);
  EXPECT_EQ(Tokens("<|im_start|>user: hi<|im_end|>", {.parse_special = true}), joined);
}

TEST_F(ChatTokenizerTest, AControlTokenIsRecognisedOnlyWhereAllOfItIsTemplateText) {
  const std::vector<std::string> plain = {"<", "|", "i", "m", "_", "e", "n", "d", "|", ">"};
  const std::string token = "<|im_end|>";
  EXPECT_EQ(Tokens({{token, false}}), plain);
  for (size_t cut = 1; cut < token.size(); ++cut) {
    const std::string head = token.substr(0, cut);
    const std::string tail = token.substr(cut);
    EXPECT_EQ(Tokens({{head, true}, {tail, false}}), plain) << cut;
    EXPECT_EQ(Tokens({{head, false}, {tail, true}}), plain) << cut;
    EXPECT_EQ(Tokens({{head, false}, {tail, false}}), plain) << cut;
    EXPECT_THAT(Tokens({{head, true}, {"", false}, {tail, true}}), ElementsAre("[<|im_end|>]"));
  }
  EXPECT_THAT(Tokens({{"<|im_end|>", false}, {token, true}}).back(), "[<|im_end|>]");
}

TEST_F(ChatTokenizerTest, AnyUserTextLeavesExactlyTheTemplatesControlTokens) {
  RandomText random(3);
  for (int i = 0; i < 500; ++i) {
    std::string user = random.Next(6);
    for (const char* piece : {"<|im_start|>", "<|im", "_end|>", "<|endoftext|>"}) {
      if (random.Below(2) == 0) user.insert(random.Below(2) == 0 ? 0 : user.size(), piece);
    }
    const auto ids = tokenizer_->EncodeSpans(
        {{"<|im_start|>user\n", true}, {user, false}, {"<|im_end|>\n", true}}, true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    std::vector<std::string> control;
    for (const int32_t id : *ids) {
      if (tokenizer_->IsControl(id)) control.push_back(tokenizer_->TokenBytes(id));
    }
    ASSERT_THAT(control, ElementsAre("<|im_start|>", "<|im_end|>")) << user;
    ASSERT_EQ(*tokenizer_->Decode(*ids, true), "user\n" + user + "\n");
  }
}

TEST(TokenizerTest, ThereIsExactlyOneBosAndEos) {
  Vocabulary vocabulary = Chat();
  vocabulary.add_bos = true;
  vocabulary.add_eos = true;
  const int32_t bos = vocabulary.bos_id;
  const int32_t eos = vocabulary.eos_id;
  const auto tokenizer = Make(vocabulary);
  EXPECT_THAT(*tokenizer->EncodeSpans({{"<|endoftext|>", true}, {"a", false}}, true),
              ElementsAre(bos, 'a', eos))
      << "the template's own BOS";
  EXPECT_THAT(*tokenizer->EncodeSpans({{"a", false}, {"<|im_end|>", true}}, true),
              ElementsAre(bos, 'a', eos))
      << "the template's own EOS";
  EXPECT_THAT(*tokenizer->Encode("<|endoftext|>a", {.parse_special = true}),
              ElementsAre(bos, 'a', eos));
  EXPECT_THAT(*tokenizer->Encode("a", {}), ElementsAre(bos, 'a', eos));
  EXPECT_THAT(*tokenizer->Encode("", {}), ElementsAre(bos, eos));
  EXPECT_THAT(*tokenizer->Encode("a", {.add_special = false}), ElementsAre('a'));
  EXPECT_EQ(tokenizer->Encode("<|endoftext|>", {})->front(), bos);
  EXPECT_EQ(tokenizer->Encode("<|endoftext|>", {})->size(), 15u) << "a user's BOS is text";
}

TEST(TokenizerTest, BosIsAddedAsTheModelAndThePretokeniserWantIt) {
  Vocabulary vocabulary = SmallBpe({});
  vocabulary.bos_id = vocabulary.eos_id;
  EXPECT_FALSE(Make(vocabulary)->adds_bos());
  vocabulary.pre = "llama-bpe";
  EXPECT_TRUE(Make(vocabulary)->adds_bos());
  vocabulary.add_bos = false;
  EXPECT_FALSE(Make(vocabulary)->adds_bos());
  Vocabulary spm = SmallSpm({});
  EXPECT_TRUE(Make(spm)->adds_bos());
  EXPECT_THAT(*Make(spm)->Encode("", {}), ElementsAre(spm.bos_id));
  spm.bos_id = -1;
  EXPECT_THAT(*Make(spm)->Encode("", {}), IsEmpty());
}

TEST(TokenizerTest, TheLeftmostSpecialTokenWinsThenTheLongest) {
  Vocabulary vocabulary = SmallBpe({});
  for (const char* token : {"ab", "abc", "bcdef"}) {
    vocabulary.tokens.push_back(token);
    vocabulary.types.push_back(static_cast<int32_t>(TokenType::kUserDefined));
  }
  const auto tokenizer = Make(vocabulary);
  const int32_t ab = IdOf(vocabulary, "ab");
  EXPECT_THAT(*tokenizer->Encode("abcdef", {}), ElementsAre(ab + 1, 'd', 'e', 'f'));
  EXPECT_THAT(*tokenizer->Encode("abbcdef", {}), ElementsAre(ab, ab + 2));
  EXPECT_THAT(*tokenizer->Encode("aab", {}), ElementsAre('a', ab));
}

TEST(TokenizerTest, TurnsEndAtTheIdsOfTheFileAndAtKnownNames) {
  Vocabulary vocabulary = Chat();
  const int32_t im_end = vocabulary.eos_id;
  vocabulary.eos_id = IdOf(vocabulary, "<|im_start|>");  // a file that names another token
  vocabulary.eot_id = 'T';
  vocabulary.eom_id = 'M';
  const auto tokenizer = Make(vocabulary);
  for (const int32_t id : {im_end, vocabulary.eos_id, int32_t{'T'}, int32_t{'M'}}) {
    EXPECT_TRUE(tokenizer->IsEndOfGeneration(id)) << id;
  }
  for (const int32_t id : {int32_t{'a'}, IdOf(vocabulary, "<think>"), -1, 1 << 30}) {
    EXPECT_FALSE(tokenizer->IsEndOfGeneration(id)) << id;
  }
}

TEST(TokenizerTest, AUserDefinedEndOfTurnIsTreatedAsControl) {
  Vocabulary vocabulary = Chat();
  const int32_t im_end = IdOf(vocabulary, "<|im_end|>");
  vocabulary.types[im_end] = static_cast<int32_t>(TokenType::kUserDefined);
  const auto tokenizer = Make(vocabulary);
  EXPECT_TRUE(tokenizer->IsControl(im_end));
  EXPECT_EQ(tokenizer->Encode("<|im_end|>", {})->size(), 10u);
}

TEST(TokenizerTest, RefusesTextThatIsNotUtf8WithItsOffset) {
  for (const Vocabulary& vocabulary : {Chat(), SmallSpm({})}) {
    const auto tokenizer = Make(vocabulary);
    for (const char* text : {"abc\xff", "abc\xc3", "abc\xed\xa0\x80", "abc\xc0\x80 "}) {
      const auto ids = tokenizer->Encode(text, {});
      EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(ids.status().message(), HasSubstr("at byte 3"));
    }
    EXPECT_EQ(tokenizer->EncodeSpans({{"ab", true}, {"\xc3", false}}, true).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(tokenizer->EncodeSpans({{"ab\xc3", true}, {"\xa9", true}}, true).ok());
  }
}

TEST(TokenizerTest, DecodeSkipsControlTokensWhenAskedAndRefusesUnknownIds) {
  const Vocabulary vocabulary = Chat();
  const auto tokenizer = Make(vocabulary);
  const int32_t end = vocabulary.eos_id;
  EXPECT_EQ(*tokenizer->Decode({'a', end, 'b'}, true), "ab");
  EXPECT_EQ(*tokenizer->Decode({'a', end, 'b'}, false), "a<|im_end|>b");
  EXPECT_EQ(*tokenizer->Decode({0xF0, 0x9F, 'b', 0xC3}, true), "\uFFFDb\uFFFD");
  for (const int32_t id : {-1, tokenizer->vocab_size(), std::numeric_limits<int32_t>::max()}) {
    const auto text = tokenizer->Decode({'a', id}, true);
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(text.status().message(), HasSubstr(absl::StrCat("token 1 is ", id)));
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
    EXPECT_FALSE(tokenizer->IsControl(id));
  }
  EXPECT_EQ(*tokenizer->Decode({tokenizer->vocab_size() - 1}, true), "<think>");
}

TEST(TokenizerTest, DecodeOfEncodeIsTheText) {
  std::vector<Vocabulary> vocabularies = {SmallSpm({{"▁", -3}, {"▁a", -1}, {"é", -2}, {"▁▁", -4}})};
  vocabularies.push_back(vocabularies[0]);
  vocabularies.back().add_space_prefix = false;
  for (const std::string& pre : Pretokenizer::Names()) {
    vocabularies.push_back(SmallBpe({"a b", "Ã ©", "\u0120 a", "\u010A \u010A"}, pre));
  }
  for (const Vocabulary& vocabulary : vocabularies) {
    const auto tokenizer = Make(vocabulary);
    RandomText random(11);
    for (int i = 0; i < 200; ++i) {
      const std::string text = i == 0 ? " \0 x\0"s : random.Next(12);
      const auto ids = tokenizer->Encode(text, {});
      ASSERT_TRUE(ids.ok()) << ids.status();
      ASSERT_EQ(*tokenizer->Decode(*ids, true), text) << vocabulary.pre;
    }
  }
}

TEST(TokenizerTest, ThreadsShareATokenizer) {
  const auto tokenizer = Make(Chat());
  const std::string text = "hi there\nhi 12345 \u4e2d\u6587";
  const std::vector<int32_t> expected = *tokenizer->Encode(text, {});
  std::vector<std::thread> threads;
  std::vector<int> num_equal(4);
  for (int& equal : num_equal) {
    threads.emplace_back([&equal, &tokenizer, &text, &expected] {
      for (int i = 0; i < 200; ++i) equal += *tokenizer->Encode(text, {}) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(num_equal, ElementsAre(200, 200, 200, 200));
}

// --- Vocabularies that must be refused
// ------------------------------------------------------------

TEST(TokenizerTest, RefusesAnUnknownModelOrPretokeniser) {
  Vocabulary vocabulary = SmallBpe({});
  vocabulary.model = "bert";
  EXPECT_THAT(Refusal(vocabulary), HasSubstr("tokenizer.ggml.model is 'bert'"));
  vocabulary.model = "gpt2";
  vocabulary.pre = "made-up";
  EXPECT_THAT(Refusal(vocabulary), HasSubstr("tokenizer.ggml.pre is 'made-up'"));
}

TEST(TokenizerTest, RefusesCountsThatDoNotFit) {
  Vocabulary vocabulary = SmallSpm({{"a", -1}});
  vocabulary.scores.pop_back();
  EXPECT_THAT(Refusal(vocabulary), HasSubstr("tokenizer.ggml.scores has 261 entries"));
  vocabulary = SmallSpm({{"a", -1}});
  vocabulary.types.push_back(1);
  EXPECT_THAT(Refusal(vocabulary), HasSubstr("tokenizer.ggml.token_type has 263 entries"));
  vocabulary.types.clear();
  EXPECT_THAT(Refusal(vocabulary), HasSubstr("tokenizer.ggml.token_type has 0 entries"));
  vocabulary = SmallBpe({});
  vocabulary.types.pop_back();
  EXPECT_THAT(Refusal(vocabulary), HasSubstr("tokenizer.ggml.token_type has 259 entries"));
  vocabulary.tokens.clear();
  EXPECT_THAT(Refusal(vocabulary), HasSubstr("tokenizer.ggml.tokens is missing"));
}

TEST(TokenizerTest, RefusesValuesOutsideTheirRange) {
  for (const int32_t type : {0, 7, -1, 1 << 24}) {
    Vocabulary vocabulary = SmallBpe({});
    vocabulary.types[5] = type;
    EXPECT_THAT(Refusal(vocabulary), HasSubstr(absl::StrCat("token_type[5] is ", type)));
  }
  Vocabulary nan = SmallSpm({{"a", std::numeric_limits<float>::quiet_NaN()}});
  EXPECT_THAT(Refusal(nan), HasSubstr("tokenizer.ggml.scores[259] is NaN"));
  Vocabulary twice = SmallBpe({});
  twice.tokens[7] = twice.tokens[9];
  EXPECT_THAT(Refusal(twice), HasSubstr("tokenizer.ggml.tokens[9] repeats token 7"));
}

TEST(TokenizerTest, RefusesSpecialIdsOutsideTheVocabulary) {
  const std::pair<int32_t Vocabulary::*, const char*> kIds[] = {
      {&Vocabulary::bos_id, "bos"},     {&Vocabulary::eos_id, "eos"},
      {&Vocabulary::eot_id, "eot"},     {&Vocabulary::eom_id, "eom"},
      {&Vocabulary::unk_id, "unknown"}, {&Vocabulary::pad_id, "padding"}};
  for (const auto& [field, name] : kIds) {
    for (const int32_t id : {-2, 260, std::numeric_limits<int32_t>::min()}) {
      Vocabulary vocabulary = SmallBpe({});
      vocabulary.*field = id;
      EXPECT_THAT(Refusal(vocabulary),
                  HasSubstr(absl::StrCat("tokenizer.ggml.", name, "_token_id is ", id)));
    }
  }
  Vocabulary vocabulary = SmallBpe({});
  vocabulary.add_bos = true;
  EXPECT_THAT(Refusal(vocabulary), HasSubstr("tokenizer.ggml.bos_token_id is missing"));
}

// --- Long runs
// ------------------------------------------------------------------------------------

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kSanitizerSlowdown = 20;
#else
constexpr double kSanitizerSlowdown = 1;
#endif

double CpuSeconds(const std::function<void()>& work) {
  timespec begin, end;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  work();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  return static_cast<double>(end.tv_sec - begin.tv_sec) +
         1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
}

void* CallFunction(void* function) {
  (*static_cast<std::function<void()>*>(function))();
  return nullptr;
}

void RunOnSmallStack(std::function<void()> work) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, CallFunction, &work), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

std::string Repeat(absl::string_view unit, int count) {
  std::string text;
  text.reserve(unit.size() * static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) text.append(unit.data(), unit.size());
  return text;
}

std::vector<Vocabulary> LongRunVocabularies() {
  return {SmallBpe({"A A", "AA AA", "AAAA AAAA", "\u0120 \u0120"}, "gpt-2"),
          SmallBpe({"A A", "AA AA", "\u010A \u010A"}, "llama-bpe"),
          SmallSpm({{"A", -4}, {"AA", -1}, {"AAAA", -2}, {"▁", -5}, {"▁▁", -3}})};
}

// One word, so the merges see all of it at once.
TEST(TokenizerTest, AMillionEqualCharactersOnASmallStackTakeAboutLinearTime) {
  for (const Vocabulary& vocabulary : LongRunVocabularies()) {
    const auto tokenizer = Make(vocabulary);
    RunOnSmallStack([&] {
      const auto seconds = [&](size_t count) {
        const std::string text(count, 'A');
        return CpuSeconds([&] { ASSERT_TRUE(tokenizer->Encode(text, {}).ok()); });
      };
      EXPECT_LT(seconds(1'000'000), 2 * kSanitizerSlowdown) << vocabulary.pre;
      const double half = std::min(seconds(250'000), seconds(250'000));
      const double whole = std::min(seconds(500'000), seconds(500'000));
      EXPECT_LT(whole / half, 3) << vocabulary.pre;
    });
  }
}

TEST(TokenizerTest, LongRunsOfAnyKindAreEncodedOnASmallStack) {
  for (const Vocabulary& vocabulary : LongRunVocabularies()) {
    const auto tokenizer = Make(vocabulary);
    RunOnSmallStack([&] {
      for (const char* unit :
           {"\n", " ", "é", "1", "\r\n", " A", "'", "e\u0301", "Aa", "中", "<|"}) {
        const std::string text = Repeat(unit, 50'000);
        const auto ids = tokenizer->Encode(text, {});
        ASSERT_TRUE(ids.ok()) << ids.status();
        EXPECT_TRUE(*tokenizer->Decode(*ids, true) == text) << vocabulary.pre << ", " << unit;
      }
    });
  }
}

}  // namespace
}  // namespace shoal::text
