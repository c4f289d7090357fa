#include "model/text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "tests/model_text/tokenizer_vocabularies.h"

namespace shoal::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Split(const Pretokenizer& pretokenizer, absl::string_view text) {
  std::vector<absl::string_view> words;
  const absl::Status status = pretokenizer.Split(text, &words);
  EXPECT_TRUE(status.ok()) << status;
  return {words.begin(), words.end()};
}

std::vector<std::string> Split(absl::string_view name, absl::string_view text) {
  auto pretokenizer = Pretokenizer::Create(name);
  EXPECT_TRUE(pretokenizer.ok()) << pretokenizer.status();
  return Split(**pretokenizer, text);
}

TEST(PretokenizerTest, EveryPatternCutsAsTheModelsTokenizersDo) {
  std::ifstream file(FixtureFolder() + "/pretokenizer_splits.json");
  ASSERT_TRUE(file);
  const auto fixture = nlohmann::json::parse(file);
  const auto texts = fixture["texts"].get<std::vector<std::string>>();
  ASSERT_GE(fixture["splits"].size(), 8u);
  for (const auto& [name, splits] : fixture["splits"].items()) {
    auto pretokenizer = Pretokenizer::Create(name);
    ASSERT_TRUE(pretokenizer.ok()) << pretokenizer.status();
    ASSERT_EQ(splits.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      std::vector<size_t> lengths;
      const std::vector<std::string> words = Split(**pretokenizer, texts[i]);
      for (const std::string& word : words) lengths.push_back(word.size());
      EXPECT_EQ(lengths, splits[i].get<std::vector<size_t>>())
          << name << ": '" << texts[i] << "' was cut into [" << absl::StrJoin(words, "|") << "]";
    }
  }
}

TEST(PretokenizerTest, DigitsAreCutAsTheNameSays) {
  EXPECT_THAT(Split("gpt-2", "a 12345"), ElementsAre("a", " 12345"));
  EXPECT_THAT(Split("smollm", "a 123"), ElementsAre("a", " ", "1", "2", "3"));
  EXPECT_THAT(Split("llama-bpe", "a 12345"), ElementsAre("a", " ", "123", "45"));
  EXPECT_THAT(Split("qwen2", "a 123"), ElementsAre("a", " ", "1", "2", "3"));
}

TEST(PretokenizerTest, WordsPutTogetherAreTheText) {
  for (const std::string& name : Pretokenizer::Names()) {
    auto pretokenizer = Pretokenizer::Create(name);
    ASSERT_TRUE(pretokenizer.ok()) << pretokenizer.status();
    RandomText random(7);
    for (int i = 0; i < 50; ++i) {
      const std::string text = random.Next(20);
      const std::vector<std::string> words = Split(**pretokenizer, text);
      ASSERT_EQ(absl::StrJoin(words, ""), text) << name;
      for (const std::string& word : words) ASSERT_NE(word, "");
    }
  }
}

// No pattern may backtrack over a run more than a few times, or need memory for each character.
TEST(PretokenizerTest, LongRunsOfOneKindAreCutAtOnce) {
  for (const char* name :
       {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken", "deepseek-v3"}) {
    auto pretokenizer = Pretokenizer::Create(name);
    ASSERT_TRUE(pretokenizer.ok()) << pretokenizer.status();
    for (const char* unit : {"A", "a", "é", "\u0301", " ", "\n", "!", "/", "中", "\u01C5"}) {
      std::string text;
      for (int i = 0; i < 200'000; ++i) text += unit;
      EXPECT_LE(Split(**pretokenizer, text).size(), 1u) << name << ", '" << unit << "'";
      EXPECT_LE(Split(**pretokenizer, text + "b").size(), 3u) << name << ", '" << unit << "'";
    }
  }
}

TEST(PretokenizerTest, RefusesANameItDoesNotKnow) {
  for (const char* name : {"", "default", "qwen3000", "GPT-2"}) {
    const auto result = Pretokenizer::Create(name);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(result.status().message(), HasSubstr("tokenizer.ggml.pre"));
    EXPECT_THAT(result.status().message(), HasSubstr(std::string("'") + name + "'"));
  }
}

}  // namespace
}  // namespace shoal::text
