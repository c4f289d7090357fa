#include "model/text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/text/tokenizer.h"
#include "tests/model_text/tokenizer_vocabularies.h"

namespace shoal::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using std::string_literals::operator""s;

std::unique_ptr<Tokenizer> Make(const Vocabulary& vocabulary) {
  auto tokenizer = Tokenizer::Create(vocabulary);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<int32_t> Encode(const Tokenizer& tokenizer, absl::string_view text) {
  const auto ids = tokenizer.Encode(text, {.add_special = false});
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(std::vector<int32_t>{});
}

std::vector<std::string> Pieces(const Tokenizer& tokenizer, absl::string_view text) {
  std::vector<std::string> pieces;
  for (const int32_t id : Encode(tokenizer, text)) pieces.push_back(tokenizer.TokenBytes(id));
  return pieces;
}

void ExpectIds(const KnownCases& cases) {
  const auto tokenizer = Make(cases.vocabulary);
  ASSERT_GE(cases.texts.size(), 46u);
  for (size_t i = 0; i < cases.texts.size(); ++i) {
    EXPECT_EQ(Encode(*tokenizer, cases.texts[i]), cases.ids[i]) << "'" << cases.texts[i] << "'";
    EXPECT_EQ(tokenizer->Decode(cases.ids[i], true).value_or("error"), cases.texts[i]);
  }
}

TEST(BpeTest, EncodesAndDecodesPublicCasesOfGpt2AndStarcoder) {
  const std::string folder = TokenizerCasesFolder();
  if (folder.empty()) GTEST_SKIP() << "no tokenizer cases: set SHOAL_CASES_DIR";
  ExpectIds(LoadKnownCases(folder, "gpt-2"));
  ExpectIds(LoadKnownCases(folder, "starcoder"));
}

TEST(BpeTest, EncodesAndDecodesAsHuggingFaceDoesForQwen2) {
  ExpectIds(LoadBpeFixture("qwen2_bpe.json"));
}

TEST(BpeTest, EncodesAndDecodesAsHuggingFaceDoesForLlama3) {
  const KnownCases cases = LoadBpeFixture("llama3_bpe.json");
  ExpectIds(cases);

  Vocabulary by_merges = cases.vocabulary;
  by_merges.pre = "smaug-bpe";  // the same cuts
  const auto tokenizer = Make(by_merges);
  size_t num_different = 0;
  for (size_t i = 0; i < cases.texts.size(); ++i) {
    num_different += Encode(*tokenizer, cases.texts[i]) != cases.ids[i];
  }
  EXPECT_GT(num_different, 10u) << "the fixture does not show what whole words do";
}

TEST(BpeTest, AppliesTheBestMergeFirstAndTheLeftmostOfEquals) {
  EXPECT_THAT(Pieces(*Make(SmallBpe({"b c", "a b"})), "abc"), ElementsAre("a", "bc"));
  EXPECT_THAT(Pieces(*Make(SmallBpe({"a b", "b c"})), "abc"), ElementsAre("ab", "c"));
  EXPECT_THAT(Pieces(*Make(SmallBpe({"a a"})), "aaaaa"), ElementsAre("aa", "aa", "a"));
  EXPECT_THAT(Pieces(*Make(SmallBpe({"a a", "aa aa", "aa a"})), "aaaaaaa"),
              ElementsAre("aaaa", "aaa"));
}

TEST(BpeTest, AWordThatIsATokenIsTakenWholeOnlyWhenMergesAreIgnored) {
  Vocabulary vocabulary = SmallBpe({"a b", "ab c"});
  vocabulary.merges = {"a b"};  // "abc" is a token that no merge reaches
  EXPECT_THAT(Pieces(*Make(vocabulary), "abc"), ElementsAre("ab", "c"));
  vocabulary.pre = "llama-bpe";
  EXPECT_THAT(Pieces(*Make(vocabulary), "abc"), ElementsAre("abc"));
  EXPECT_THAT(Pieces(*Make(vocabulary), "abcab"), ElementsAre("ab", "c", "ab"));
}

TEST(BpeTest, NoMergeYieldsAControlToken) {
  Vocabulary vocabulary = SmallBpe({"< s", "<s >"});
  const int32_t forged = IdOf(vocabulary, "<s>");
  vocabulary.types[forged] = static_cast<int32_t>(TokenType::kControl);
  vocabulary.pre = "llama-bpe";
  const auto tokenizer = Make(vocabulary);
  EXPECT_THAT(Pieces(*tokenizer, "<s>"), ElementsAre("<s", ">"))
      << "the words of the pre-tokeniser";
  vocabulary.merges.push_back("a b");
  vocabulary.tokens.push_back("ab");
  vocabulary.types.push_back(static_cast<int32_t>(TokenType::kControl));
  EXPECT_THAT(Pieces(*Make(vocabulary), "ab"), ElementsAre("a", "b"));
}

TEST(BpeTest, BytesOfATokenUndoTheFilesAlphabet) {
  Vocabulary vocabulary = SmallBpe({"\u0120 t", "\u010A \u010A", "Ã ©"});
  vocabulary.tokens.push_back("｜raw｜");  // outside the alphabet: stands for itself
  vocabulary.types.push_back(static_cast<int32_t>(TokenType::kNormal));
  const std::vector<std::string> bytes = BpeTokenBytes(vocabulary);
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(bytes[byte], std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(bytes[256], " t");
  EXPECT_EQ(bytes[257], "\n\n");
  EXPECT_EQ(bytes[258], "é");
  EXPECT_EQ(bytes[IdOf(vocabulary, "<|im_end|>")], "<|im_end|>");
  EXPECT_EQ(bytes.back(), "｜raw｜");
}

TEST(BpeTest, RefusesMergesThatDoNotFitTheTokens) {
  const std::pair<std::string, std::string> kCases[] = {
      {"ab", "space between them"},         {"a ", "space between them"},
      {" ab", "space between them"},        {"", "space between them"},
      {"a zz", "in tokenizer.ggml.tokens"}, {"zz a", "in tokenizer.ggml.tokens"},
      {"a c", "in tokenizer.ggml.tokens"}};
  for (const auto& [merge, why] : kCases) {
    Vocabulary vocabulary = SmallBpe({"a b"});
    vocabulary.merges.push_back(merge);
    const auto result = Tokenizer::Create(vocabulary);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << merge;
    EXPECT_THAT(result.status().message(),
                HasSubstr("tokenizer.ggml.merges[1] is '" + merge + "'"));
    EXPECT_THAT(result.status().message(), HasSubstr(why));
  }
}

TEST(BpeTest, RefusesMissingMergesUnlessTheTokensAreBytes) {
  Vocabulary vocabulary = SmallBpe({"a b"});
  vocabulary.merges.clear();
  EXPECT_THAT(Tokenizer::Create(vocabulary).status().message(),
              HasSubstr("tokenizer.ggml.merges is missing"));
  EXPECT_THAT(Pieces(*Make(SmallBpe({})), "ab"), ElementsAre("a", "b"));
}

TEST(BpeTest, NamesTheByteThatTheVocabularyLacks) {
  Vocabulary vocabulary = SmallBpe({});
  vocabulary.types[0] = static_cast<int32_t>(TokenType::kUnused);
  const auto ids = Make(vocabulary)->Encode("a\0b"s, {});
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ids.status().message(), HasSubstr("0x00"));
}

}  // namespace
}  // namespace shoal::text
