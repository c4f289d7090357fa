#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace shoal::base {
namespace {

using std::string_literals::operator""s;

constexpr size_t kValid = absl::string_view::npos;

TEST(Utf8Test, EveryCodePointSurvivesAppendAndNext) {
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
    ASSERT_EQ(pos - begin, Utf8CharacterSize(absl::string_view(all).substr(begin)));
  }
  EXPECT_EQ(pos, all.size());
}

TEST(Utf8Test, FindsTheFirstInvalidByte) {
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

}  // namespace
}  // namespace shoal::base
