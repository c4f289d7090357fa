#include "model/text/spm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "model/text/tokenizer.h"
#include "tests/model_text/tokenizer_vocabularies.h"

namespace shoal::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> Make(const Vocabulary& vocabulary) {
  auto tokenizer = Tokenizer::Create(vocabulary);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<std::string> Pieces(const Vocabulary& vocabulary, absl::string_view text,
                                bool parse_special = false) {
  const auto ids =
      Make(vocabulary)->Encode(text, {.add_special = false, .parse_special = parse_special});
  EXPECT_TRUE(ids.ok()) << ids.status();
  std::vector<std::string> pieces;
  for (const int32_t id : *ids) pieces.push_back(vocabulary.tokens[id]);
  return pieces;
}

Vocabulary WithoutPrefix(Vocabulary vocabulary) {
  vocabulary.add_space_prefix = false;
  return vocabulary;
}

TEST(SpmTest, EncodesAndDecodesPublicCasesOfLlama) {
  const std::string folder = TokenizerCasesFolder();
  if (folder.empty()) GTEST_SKIP() << "no tokenizer cases: set SHOAL_CASES_DIR";
  const KnownCases cases = LoadKnownCases(folder, "llama-spm");
  const auto tokenizer = Make(cases.vocabulary);
  ASSERT_EQ(cases.texts.size(), 46u);
  for (size_t i = 0; i < cases.texts.size(); ++i) {
    const auto ids = tokenizer->Encode(cases.texts[i], {.add_special = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, cases.ids[i]) << "'" << cases.texts[i] << "'";
    EXPECT_EQ(tokenizer->Decode(*ids, true).value_or("error"), cases.texts[i]);
  }
}

TEST(SpmTest, MergesTheBestScoreFirstAndTheLeftmostOfEquals) {
  const std::vector<std::pair<std::string, float>> letters = {{"a", -9}, {"b", -9}, {"c", -9}};
  auto pieces = letters;
  pieces.insert(pieces.end(), {{"ab", -2}, {"bc", -1}});
  EXPECT_THAT(Pieces(WithoutPrefix(SmallSpm(pieces)), "abc"), ElementsAre("a", "bc"));
  pieces = letters;
  pieces.insert(pieces.end(), {{"ab", -1}, {"bc", -1}});
  EXPECT_THAT(Pieces(WithoutPrefix(SmallSpm(pieces)), "abc"), ElementsAre("ab", "c"));
  pieces.push_back({"aa", -std::numeric_limits<float>::infinity()});
  EXPECT_THAT(Pieces(WithoutPrefix(SmallSpm(pieces)), "aaa"), ElementsAre("aa", "a"));
}

TEST(SpmTest, MergesCharactersThatAreNoPiecesIntoOne) {
  EXPECT_THAT(Pieces(WithoutPrefix(SmallSpm({{"xy", -1}})), "xyx"), ElementsAre("xy", "<0x78>"));
}

TEST(SpmTest, SpacesArePartOfPieces) {
  const Vocabulary vocabulary = SmallSpm({{"▁", -3}, {"▁a", -1}, {"a", -2}, {"▁▁", -2}});
  EXPECT_THAT(Pieces(vocabulary, "a a"), ElementsAre("▁a", "▁a"));
  EXPECT_THAT(Pieces(vocabulary, "  a"), ElementsAre("▁▁", "▁a"));
  EXPECT_THAT(Pieces(WithoutPrefix(vocabulary), "a a"), ElementsAre("a", "▁a"));
  EXPECT_THAT(Pieces(vocabulary, ""), ElementsAre());
}

TEST(SpmTest, TheSpacePrefixComesAtTheStartAndAfterControlTokensOnly) {
  const Vocabulary vocabulary = SmallSpm({{"▁", -3}, {"▁a", -1}, {"a", -2}});
  EXPECT_THAT(Pieces(vocabulary, "a[INST]a<think>a[INST][INST]", true),
              ElementsAre("▁a", "[INST]", "▁a", "<think>", "a", "[INST]", "[INST]"));
  EXPECT_THAT(Pieces(vocabulary, "<think>a"), ElementsAre("▁", "<think>", "a"));
}

TEST(SpmTest, CharactersThatAreNoPieceBecomeBytesOrUnknown) {
  Vocabulary vocabulary = WithoutPrefix(SmallSpm({{"a", -1}}));
  EXPECT_THAT(Pieces(vocabulary, "aéa"), ElementsAre("a", "<0xC3>", "<0xA9>", "a"));
  EXPECT_THAT(Pieces(vocabulary, "a a"), ElementsAre("a", "<0x20>", "a"));
  EXPECT_THAT(Pieces(vocabulary, "<0x41>"),
              ElementsAre("<0x3C>", "<0x30>", "<0x78>", "<0x34>", "<0x31>", "<0x3E>"))
      << "a byte token's name is text";
  for (int32_t id = 3; id < 259; ++id) {
    vocabulary.types[id] = static_cast<int32_t>(TokenType::kUnused);
  }
  EXPECT_THAT(Pieces(vocabulary, "aéa"), ElementsAre("a", "<unk>", "a"));
  vocabulary.types[0] = static_cast<int32_t>(TokenType::kControl);
  vocabulary.unk_id = -1;
  EXPECT_THAT(Tokenizer::Create(vocabulary).status().message(), HasSubstr("unknown token"));
}

TEST(SpmTest, AnUnusedPieceHelpsOthersButDoesNotAppear) {
  Vocabulary vocabulary = WithoutPrefix(
      SmallSpm({{"a", -9}, {"b", -9}, {"c", -9}, {"ab", -1}, {"abab", -2}, {"ababc", -3}}));
  for (const char* piece : {"ab", "abab"}) {
    vocabulary.types[IdOf(vocabulary, piece)] = static_cast<int32_t>(TokenType::kUnused);
  }
  EXPECT_THAT(Pieces(vocabulary, "ababc"), ElementsAre("ababc"));
  EXPECT_THAT(Pieces(vocabulary, "ababa"), ElementsAre("a", "b", "a", "b", "a"));
}

TEST(SpmTest, BytesOfATokenAreTextWithSpaces) {
  const Vocabulary vocabulary = SmallSpm({{"▁a▁", -1}});
  const std::vector<std::string> bytes = SpmTokenBytes(vocabulary);
  EXPECT_EQ(bytes[IdOf(vocabulary, "▁a▁")], " a ");
  EXPECT_EQ(bytes[IdOf(vocabulary, "<0x0A>")], "\n");
  EXPECT_EQ(bytes[IdOf(vocabulary, "<0xFF>")], "\xFF");
  EXPECT_EQ(bytes[IdOf(vocabulary, "[INST]")], "[INST]");
}

TEST(SpmTest, RefusesAByteTokenThatIsNone) {
  for (const char* token : {"<0xG0>", "<0x0>", "0x41", "<0x411>"}) {
    Vocabulary vocabulary = SmallSpm({});
    vocabulary.tokens[3] = token;
    EXPECT_THAT(Tokenizer::Create(vocabulary).status().message(),
                HasSubstr(std::string("tokenizer.ggml.tokens[3] is '") + token + "'"));
  }
}

}  // namespace
}  // namespace shoal::text
