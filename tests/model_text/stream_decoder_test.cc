#include "model/text/stream_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/utf8.h"
#include "model/text/tokenizer.h"
#include "tests/model_text/tokenizer_vocabularies.h"

namespace shoal::text {
namespace {

using ::testing::ElementsAre;
using Options = StreamDecoder::Options;

struct Result {
  std::vector<std::string> deltas;
  std::optional<int> stop;

  std::string text() const {
    std::string all;
    for (const std::string& delta : deltas) all += delta;
    return all;
  }
};

// The tokens of SmallBpe are bytes, so a stream can be cut anywhere.
class StreamDecoderTest : public ::testing::Test {
 protected:
  Result Stream(const std::vector<int32_t>& ids, Options options) {
    return Stream(*tokenizer_, ids, std::move(options));
  }

  Result Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, Options options) {
    StreamDecoder decoder(&tokenizer, std::move(options));
    Result result;
    const auto take = [&result](StreamDecoder::Delta delta) {
      EXPECT_TRUE(base::IsValidUtf8(delta.text)) << delta.text;
      if (result.stop.has_value()) {
        EXPECT_EQ(delta.text, "");
        EXPECT_FALSE(delta.matched_stop_string.has_value());
      } else {
        result.stop = delta.matched_stop_string;
      }
      result.deltas.push_back(std::move(delta.text));
    };
    for (const int32_t id : ids) take(decoder.Append(id));
    take(decoder.Finish());
    return result;
  }

  // One token for each string: ids of the vocabulary's own, bytes else.
  std::vector<int32_t> Ids(const std::vector<std::string>& tokens) {
    std::vector<int32_t> ids;
    for (const std::string& token : tokens) {
      ids.push_back(token.size() == 1 ? static_cast<unsigned char>(token[0])
                                      : IdOf(vocabulary_, token));
    }
    return ids;
  }

  std::vector<int32_t> Bytes(absl::string_view text) {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  const Vocabulary vocabulary_ = SmallBpe({"a b", "c d", "ab cd", "b c", "e f"});
  const std::unique_ptr<Tokenizer> tokenizer_ = *Tokenizer::Create(vocabulary_);
};

TEST_F(StreamDecoderTest, TextLeavesWithItsToken) {
  EXPECT_THAT(Stream(Ids({"ab", "cd", "e"}), {}).deltas, ElementsAre("ab", "cd", "e", ""));
}

TEST_F(StreamDecoderTest, ACharacterLeavesWithItsLastByte) {
  EXPECT_THAT(Stream(Bytes("😀"), {}).deltas, ElementsAre("", "", "", "😀", ""));
  EXPECT_THAT(Stream(Bytes("aé"), {}).deltas, ElementsAre("a", "", "é", ""));
}

TEST_F(StreamDecoderTest, ACharacterCutOffAtTheEndBecomesOneReplacement) {
  EXPECT_THAT(Stream(Bytes("a\xF0\x9F\x98"), {}).deltas, ElementsAre("a", "", "", "", "\uFFFD"));
  EXPECT_EQ(*tokenizer_->Decode(Bytes("a\xF0\x9F\x98"), true), "a\uFFFD");
}

TEST_F(StreamDecoderTest, BytesThatFormNoCharacterAreReplaced) {
  EXPECT_THAT(Stream(Bytes("\x80z"), {}).deltas, ElementsAre("\uFFFD", "z", ""));
  EXPECT_THAT(Stream(Bytes("\xE2\x82z"), {}).deltas, ElementsAre("", "", "\uFFFDz", ""));
}

TEST_F(StreamDecoderTest, AStopStringAcrossTokensEndsTheText) {
  const Result two = Stream(Ids({"e", "ab", "cd", "e"}), {.stop_strings = {"bc"}});
  EXPECT_EQ(two.text(), "ea");
  EXPECT_EQ(two.stop, 0);
  const Result three = Stream(Ids({"ab", "cd", "ef", "e"}), {.stop_strings = {"zz", "bcde"}});
  EXPECT_THAT(three.deltas, ElementsAre("a", "", "", "", ""));
  EXPECT_EQ(three.stop, 1);
  const Result inside = Stream(Ids({"abcd"}), {.stop_strings = {"bc"}});
  EXPECT_EQ(inside.text(), "a");
}

TEST_F(StreamDecoderTest, TheStopStringIsPutOutOnlyIfAsked) {
  const Result with =
      Stream(Ids({"e", "ab", "cd", "e"}), {.stop_strings = {"bc"}, .include_stop_in_output = true});
  EXPECT_EQ(with.text(), "eabc");
  EXPECT_EQ(with.stop, 0);
}

TEST_F(StreamDecoderTest, APossibleStopIsHeldBackAndReleasedWhenItFails) {
  const Result result = Stream(Bytes("xabyabc"), {.stop_strings = {"abc"}});
  EXPECT_THAT(result.deltas, ElementsAre("x", "", "", "aby", "", "", "", ""));
  EXPECT_EQ(result.stop, 0);
  EXPECT_THAT(Stream(Bytes("aaab"), {.stop_strings = {"aab"}}).deltas,
              ElementsAre("", "", "a", "", ""));
}

TEST_F(StreamDecoderTest, HeldTextIsReleasedAtTheEnd) {
  const Result result = Stream(Bytes("text"), {.stop_strings = {"xtQQQQ"}});
  EXPECT_THAT(result.deltas, ElementsAre("t", "e", "", "", "xt"));
  EXPECT_FALSE(result.stop.has_value());
}

TEST_F(StreamDecoderTest, TheLeftmostStopWinsThenTheFirstToComplete) {
  EXPECT_EQ(Stream(Bytes("abc"), {.stop_strings = {"abc", "ab"}}).stop, 1);
  EXPECT_EQ(Stream(Bytes("abc"), {.stop_strings = {"abc", "bc"}}).stop, 0);
  EXPECT_EQ(Stream(Bytes("aabc"), {.stop_strings = {"bc", "ab"}}).text(), "a");
  EXPECT_EQ(Stream(Bytes("ab"), {.stop_strings = {"ab", "ab"}}).stop, 0);
}

TEST_F(StreamDecoderTest, AStopInsideALongerOneWaitsForIt) {
  const Options options = {.stop_strings = {"bc", "abcd"}};
  const Result failed = Stream(Bytes("abcx"), options);
  EXPECT_THAT(failed.deltas, ElementsAre("", "", "", "a", ""));
  EXPECT_EQ(failed.stop, 0);
  EXPECT_EQ(Stream(Bytes("abcd"), options).stop, 1);
  const Result ended = Stream(Bytes("abc"), options);
  EXPECT_EQ(ended.text(), "a");
  EXPECT_EQ(ended.stop, 0) << "decided by the end";
}

TEST_F(StreamDecoderTest, EmptyAndInvalidStopStringsNeverMatch) {
  const Result result = Stream(Bytes("aé\xA9z"), {.stop_strings = {"", "\xA9", "\xC3", "z"}});
  EXPECT_EQ(result.text(), "aé\uFFFD");
  EXPECT_EQ(result.stop, 3);
}

TEST_F(StreamDecoderTest, ControlTokensHaveTextOnlyIfAsked) {
  const std::vector<int32_t> ids = Ids({"a", "<|im_end|>", "<think>", "b"});
  EXPECT_EQ(Stream(ids, {}).text(), "a<think>b");
  EXPECT_EQ(Stream(ids, {.skip_special_tokens = false}).text(), "a<|im_end|><think>b");
  EXPECT_EQ(Stream(ids, {.stop_strings = {"<|im_end|>"}}).stop, std::nullopt);
  EXPECT_EQ(Stream(ids, {.stop_strings = {"end|>"}, .skip_special_tokens = false}).text(),
            "a<|im_");
}

TEST_F(StreamDecoderTest, AnIdOutsideTheVocabularyHasNoText) {
  EXPECT_EQ(Stream({'a', -1, 1 << 30, tokenizer_->vocab_size(), 'b'}, {}).text(), "ab");
}

TEST_F(StreamDecoderTest, TheSpaceBeforeTheFirstWordIsDroppedOnce) {
  const Vocabulary spm = SmallSpm({{"▁a", -1}, {"▁", -2}});
  const auto tokenizer = *Tokenizer::Create(spm);
  const int32_t word = IdOf(spm, "▁a");
  EXPECT_THAT(Stream(*tokenizer, {word, word}, {}).deltas, ElementsAre("a", " a", ""));
  EXPECT_THAT(Stream(*tokenizer, {spm.bos_id, word + 1, word}, {}).deltas,
              ElementsAre("", "", " a", ""));
  EXPECT_EQ(Stream(*tokenizer, {spm.bos_id, word}, {.skip_special_tokens = false}).text(), "<s>a");
  EXPECT_EQ(Stream(*tokenizer, {word, word}, {.strip_leading_space = false}).text(), " a a");
  Vocabulary without = spm;
  without.add_space_prefix = false;
  EXPECT_EQ(Stream(**Tokenizer::Create(without), {word, word}, {}).text(), " a a");
}

// --- The stream equals the whole
// ------------------------------------------------------------------

struct Whole {
  std::string text;
  std::optional<int> stop;
};

// The definition, on the whole text.
Whole CutAtFirstStop(std::string text, const Options& options) {
  size_t begin = std::string::npos;
  std::optional<int> first;
  for (size_t i = 0; i < options.stop_strings.size(); ++i) {
    const std::string& stop = options.stop_strings[i];
    const size_t found = text.find(stop);
    if (found == std::string::npos) continue;
    if (!first || found < begin ||
        (found == begin && stop.size() < options.stop_strings[*first].size())) {
      begin = found;
      first = static_cast<int>(i);
    }
  }
  if (first) {
    text.resize(begin + (options.include_stop_in_output ? options.stop_strings[*first].size() : 0));
  }
  return {text, first};
}

TEST_F(StreamDecoderTest, DeltasTogetherAreTheWholeTextCutAtTheFirstStop) {
  RandomText random(5);
  // Few different characters make many partial and overlapping stops.
  const std::vector<std::string> kTokens = {"a", "b",    "c",    "ab",   "cd",   "abcd",      "bc",
                                            " ", "\xC3", "\xA9", "\xF0", "\x9F", "<|im_end|>"};
  const std::vector<std::string> kStopParts = {"a", "b", "c", "d", "é", " ", "\uFFFD"};
  int num_stopped = 0;
  for (int round = 0; round < 20'000; ++round) {
    Options options;
    options.include_stop_in_output = random.Below(2) == 0;
    options.skip_special_tokens = random.Below(2) == 0;
    for (uint32_t i = random.Below(4); i > 0; --i) {
      std::string& stop = options.stop_strings.emplace_back();
      for (uint32_t j = 1 + random.Below(4); j > 0; --j) {
        stop += kStopParts[random.Below(static_cast<uint32_t>(kStopParts.size()))];
      }
    }
    std::vector<std::string> tokens;
    for (uint32_t i = random.Below(12); i > 0; --i) {
      tokens.push_back(kTokens[random.Below(static_cast<uint32_t>(kTokens.size()))]);
    }
    const std::vector<int32_t> ids = Ids(tokens);
    const Whole expected =
        CutAtFirstStop(*tokenizer_->Decode(ids, options.skip_special_tokens), options);
    const Result result = Stream(ids, options);
    ASSERT_EQ(result.text(), expected.text);
    ASSERT_EQ(result.stop, expected.stop);
    num_stopped += result.stop.has_value();
  }
  EXPECT_GT(num_stopped, 3000);
}

}  // namespace
}  // namespace shoal::text
