#include "cli/output.h"

#include "cli/completion.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "shoal/v1/admin.pb.h"

namespace shoal::cli {
namespace {

using testing::HasSubstr;

TEST(TableTest, AlignsColumnsByCharactersAndLeavesNoTrailingSpace) {
  Table table({"A", "B"});
  table.AddRow({"long cell", "x"});
  table.AddRow({"Zürich", ""});
  EXPECT_EQ(table.ToString(), "A          B\nlong cell  x\nZürich\n");
}

TEST(TableTest, ACellCannotControlTheTerminal) {
  Table table({"A"});
  table.AddRow({"\033[2Jx\ny"});
  EXPECT_EQ(table.ToString(), "A\n?[2Jx?y\n");
}

TEST(JsonTest, HasTheFieldsThatAreZero) {
  const auto json = nlohmann::json::parse(ToJson(v1::GetClusterStatusResponse()));
  EXPECT_EQ(json["ready"], false);
  EXPECT_EQ(json["runningRequests"], 0);
}

TEST(JsonTest, AnErrorIsJsonWhateverItsMessage) {
  const auto json = nlohmann::json::parse(ErrorJson("INTERNAL", "a \"b\"\n\xff"));
  EXPECT_EQ(json["error"]["code"], "INTERNAL");
  EXPECT_EQ(json["error"]["message"], "a \"b\"\n\\xff");
}

TEST(FormatBytesTest, PicksTheUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(3.0 * (1 << 30)), "3.0 GiB");
}

TEST(EscapeBytesTest, KeepsUtf8AndEscapesTheRest) {
  EXPECT_EQ(EscapeBytes("aé漢😀"), "aé漢😀");
  EXPECT_EQ(EscapeBytes("a\xc3"), "a\\xc3");
  EXPECT_EQ(EscapeBytes("\xc0\xaf"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(EscapeBytes("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(EscapeBytes("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(WithoutControlsTest, LeavesNewlinesAndTabs) {
  EXPECT_EQ(WithoutControls("a\033[31m\tb\n\r\x7f"), "a[31m\tb\n");
}

TEST(BashCompletionTest, OffersCommandsAndTheOptionsOfEach) {
  const std::string script = BashCompletion(std::vector<CompletedCommand>{
      {"", {"--help"}}, {"generate", {"--server", "-n"}}, {"serve", {"--tp"}, true}});
  EXPECT_THAT(script, HasSubstr("words=\"generate serve\""));
  EXPECT_THAT(script, HasSubstr("generate) words=\"--server -n\" ;;"));
  EXPECT_THAT(script, HasSubstr("'') words=\"--help\" ;;"));
}

}  // namespace
}  // namespace shoal::cli
