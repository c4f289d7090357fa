#include "model/text/utf8_assembler.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace shoal::text {
namespace {

std::string Assemble(const std::vector<std::string>& chunks) {
  Utf8Assembler assembler;
  std::string out;
  for (const std::string& chunk : chunks) assembler.Append(chunk, &out);
  assembler.Finish(&out);
  return out;
}

// The replacements Python's bytes.decode("utf-8", "replace") makes.
TEST(Utf8AssemblerTest, ReplacesEachMaximalPrefixOnce) {
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

TEST(Utf8AssemblerTest, DoesNotDependOnWhereTheStreamIsCut) {
  const std::string bytes = "a\xf0\x9f\x98\x80\xe2\x82\xff\xc3\xa9\xed\xa0\x80z\xf0\x9f";
  const std::string whole = Assemble({bytes});
  for (size_t i = 0; i <= bytes.size(); ++i) {
    for (size_t j = i; j <= bytes.size(); ++j) {
      EXPECT_EQ(Assemble({bytes.substr(0, i), bytes.substr(i, j - i), bytes.substr(j)}), whole);
    }
  }
}

TEST(Utf8AssemblerTest, ReleasesACharacterWithItsLastByte) {
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
