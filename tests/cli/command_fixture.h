#pragma once

#include <sstream>
#include <string>
#include <utility>

#include "cli/command_chat.h"
#include "cli/command_generate.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/fake_router.h"

namespace shoal::cli {

inline const grpc::Status kUnavailable(grpc::StatusCode::UNAVAILABLE, "draining");

// A session with a router that the test drives, in this process.
class CommandTest : public testing::Test {
 protected:
  CommandTest() {
    session_.out = &out_;
    session_.err = &err_;
    session_.server = session_.admin = router_.address();
  }

  void UseJson() { session_.format = Format::kJson; }
  std::string out() { return out_.str(); }
  std::string err() { return err_.str(); }
  nlohmann::json json() { return nlohmann::json::parse(out()); }  // throws if it is not JSON
  v1::GenerateRequest request() { return router_.generate_requests().back(); }

  int Generate(const GenerateFlags& flags, const std::string& in = "") {
    std::istringstream input(in);
    return RunGenerate(session_, flags, &input);
  }
  int Chat(const ChatFlags& flags, const std::string& in) {
    std::istringstream input(in);
    return RunChat(session_, flags, [&](std::string* line) {
      return static_cast<bool>(std::getline(input, *line));
    });
  }

  FakeRouter router_;
  std::ostringstream out_, err_;
  Session session_;
};

inline GenerateFlags Prompt(std::string prompt) {
  GenerateFlags flags;
  flags.words = {std::move(prompt)};
  return flags;
}

inline v1::Usage MakeUsage(uint32_t prompt, uint32_t cached, uint32_t completion) {
  v1::Usage usage;
  usage.set_prompt_tokens(prompt);
  usage.set_cached_prompt_tokens(cached);
  usage.set_completion_tokens(completion);
  return usage;
}

}  // namespace shoal::cli
