#include "router/prompt.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/router/test_model.h"

namespace shoal::router {
namespace {

using testing::HasSubstr;

std::shared_ptr<const ServedModel> ModelWith(const std::string& chat_template) {
  TestModelOptions options;
  options.chat_template = chat_template;
  return MakeTestModel(options);
}

v1::ChatInput ChatWithATool() {
  v1::ChatInput chat;
  v1::ChatMessage* message = chat.add_messages();
  message->set_role("user");
  message->set_content("hi");
  chat.add_tools()->set_name("clock");
  return chat;
}

TEST(RenderChatTest, ToolsThatTheTemplateIgnoresAreRefused) {
  const auto model = ModelWith("{{ messages[0].content }}");
  const auto spans = RenderChat(*model, ChatWithATool(), 1000, absl::UnixEpoch());
  EXPECT_EQ(spans.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(spans.status().message(), HasSubstr("chat.tools"));
  EXPECT_THAT(spans.status().message(), HasSubstr("makes no use of tools"));
}

TEST(RenderChatTest, ToolsThatTheTemplateShowsAreAccepted) {
  const auto model =
      ModelWith("{% for t in tools %}{{ t.function.name }}{% endfor %}{{ messages[0].content }}");
  const auto spans = RenderChat(*model, ChatWithATool(), 1000, absl::UnixEpoch());
  ASSERT_TRUE(spans.ok()) << spans.status();
  std::string text;
  for (const text::TextSpan& span : *spans) text += span.text;
  EXPECT_EQ(text, "clockhi");
}

}  // namespace
}  // namespace shoal::router
