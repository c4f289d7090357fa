#include "model/text/unicode.h"

#include <gtest/gtest.h>

#include <string>

namespace shoal::text {
namespace {

using std::string_literals::operator""s;

constexpr size_t kValid = absl::string_view::npos;

std::string Assemble(const std::vector<std::string>& chunks) {
  Utf8Assembler assembler;
  std::string out;
  for (const std::string& chunk : chunks) assembler.Append(chunk, &out);
  assembler.Finish(&out);
  return out;
}

TEST(UnicodeTest, EveryCodePointSurvivesAppendAndNext) {
  std::string all;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c < 0xD800 || c > 0xDFFF) AppendUtf8(c, &all);
  }
  EXPECT_EQ(FindInvalidUtf8(all), kValid);
  size_t pos = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const size_t begin = pos;
    ASSERT_EQ(NextCodePoint(all, &pos), c);
    ASSERT_EQ(pos - begin, Utf8Length(all[begin]));
  }
  EXPECT_EQ(pos, all.size());
}

TEST(UnicodeTest, FindsTheFirstInvalidByte) {
  EXPECT_EQ(FindInvalidUtf8(""), kValid);
  EXPECT_EQ(FindInvalidUtf8("a\0é\u20ac\U0010ffff"s), kValid);
  EXPECT_EQ(FindInvalidUtf8("ab\x80"), 2u);
  EXPECT_EQ(FindInvalidUtf8("ab\xff"), 2u);
  EXPECT_EQ(FindInvalidUtf8("a\xc3"), 1u) << "cut off";
  EXPECT_EQ(FindInvalidUtf8("a\xe2\x82"), 1u) << "cut off";
  EXPECT_EQ(FindInvalidUtf8("\xc0\xaf"), 0u) << "overlong";
  EXPECT_EQ(FindInvalidUtf8("\xe0\x9f\xbf"), 0u) << "overlong";
  EXPECT_EQ(FindInvalidUtf8("\xf0\x8f\xbf\xbf"), 0u) << "overlong";
  EXPECT_EQ(FindInvalidUtf8("\xed\xa0\x80"), 0u) << "surrogate";
  EXPECT_EQ(FindInvalidUtf8("\xf4\x90\x80\x80"), 0u) << "above U+10FFFF";
  EXPECT_EQ(FindInvalidUtf8("\xe2\x82z"), 0u);
}

// The replacements Python's bytes.decode("utf-8", "replace") makes.
TEST(UnicodeTest, AssemblerReplacesEachMaximalPrefixOnce) {
  const std::pair<std::string, std::string> kCases[] = {
      {"plain é 🙂", "plain é 🙂"},
      {"\x80", "\uFFFD"},
      {"\xe2\x82z", "\uFFFDz"},
      {"\xf0\x9f\x98", "\uFFFD"},
      {"\xf0\x9f\x98\xf0\x9f\x98\x80", "\uFFFD😀"},
      {"\xc0\xaf", "\uFFFD\uFFFD"},
      {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"a\xff\xfe\xe9", "a\uFFFD\uFFFD\uFFFD"},
  };
  for (const auto& [bytes, expected] : kCases) EXPECT_EQ(Assemble({bytes}), expected);
}

TEST(UnicodeTest, AssemblerDoesNotDependOnWhereTheStreamIsCut) {
  const std::string bytes = "a\xf0\x9f\x98\x80\xe2\x82\xff\xc3\xa9\xed\xa0\x80z\xf0\x9f";
  const std::string whole = Assemble({bytes});
  for (size_t i = 0; i <= bytes.size(); ++i) {
    for (size_t j = i; j <= bytes.size(); ++j) {
      EXPECT_EQ(Assemble({bytes.substr(0, i), bytes.substr(i, j - i), bytes.substr(j)}), whole);
    }
  }
}

TEST(UnicodeTest, AssemblerReleasesACharacterWithItsLastByte) {
  Utf8Assembler assembler;
  std::string out;
  for (const char* byte : {"\xf0", "\x9f", "\x98"}) {
    assembler.Append(byte, &out);
    EXPECT_EQ(out, "");
  }
  assembler.Append("\x80", &out);
  EXPECT_EQ(out, "😀");
}

}  // namespace
}  // namespace shoal::text
