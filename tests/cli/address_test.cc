#include "cli/address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using testing::HasSubstr;

TEST(ParseAddressTest, AddsThePortThatIsMissing) {
  for (const auto& [text, address] : std::vector<std::pair<std::string, std::string>>{
           {"localhost", "localhost:8500"},
           {"localhost:1", "localhost:1"},
           {"10.0.0.1:65535", "10.0.0.1:65535"},
           {"::1", "[::1]:8500"},
           {"[::1]", "[::1]:8500"},
           {"[::1]:2", "[::1]:2"},
           {"my-host_1.example", "my-host_1.example:8500"},
           {"unix:/tmp/x:y", "unix:/tmp/x:y"},
           {"unix-abstract:a", "unix-abstract:a"}}) {
    const auto parsed = ParseAddress(text, 8500);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, address);
  }
}

TEST(ParseAddressTest, SaysWhatIsWrong) {
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"", "has no host"},
           {":8610", "has no host"},
           {"http://localhost:8500", "has a scheme"},
           {"localhost:", "has no port from 1 to 65535"},
           {"localhost:0", "has no port from 1 to 65535"},
           {"localhost:65536", "has no port from 1 to 65535"},
           {"localhost:+80", "has no port from 1 to 65535"},
           {"[::1]8", "has no port"},
           {"[::1]x", "has no port"},
           {"8500", "is only a number"},
           {"a b", "is no address"},
           {"host/path:1", "is no address"}}) {
    const auto parsed = ParseAddress(text, 8500);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(parsed.status().message(), HasSubstr(why));
    EXPECT_THAT(parsed.status().message(), HasSubstr("HOST:PORT is wanted"));
  }
}

}  // namespace
}  // namespace shoal::cli
