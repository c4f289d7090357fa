#include "router/prompt.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "google/protobuf/util/json_util.h"
#include "router/rpc_status.h"

namespace shoal::router {
namespace {

// Messages, tools and tool calls of one conversation: an empty one has no bytes to be limited by.
constexpr size_t kMaxChatItems = 1 << 16;

absl::Status TooManyBytes(absl::string_view field, size_t bytes, size_t max_bytes) {
  return InvalidField(field, absl::StrCat("has ", bytes, " bytes, at most ", max_bytes,
                                          " are allowed: shorten it"));
}

absl::Status TooManyTokens(absl::string_view count, const PromptLimits& limits) {
  return InvalidField(
      "input", absl::StrCat("the prompt has ", count, " tokens, at most ", limits.max_tokens,
                            " leave room for output: shorten it or set truncate_prompt_tokens"));
}

absl::StatusOr<text::ChatInput> ToChatInput(const v1::ChatInput& chat) {
  text::ChatInput input;
  for (const v1::ChatMessage& message : chat.messages()) {
    text::ChatMessage& out = input.messages.emplace_back();
    out.role = message.role();
    out.content = message.content();
    out.name = message.name();
    out.tool_call_id = message.tool_call_id();
    out.reasoning_content = message.reasoning_content();
    for (const v1::ToolCall& call : message.tool_calls()) {
      out.tool_calls.push_back({call.id(), call.name(), call.arguments_json()});
    }
  }
  for (const v1::Tool& tool : chat.tools()) {
    input.tools.push_back({tool.name(), tool.description(), tool.parameters_json_schema()});
  }
  if (chat.has_add_generation_prompt()) {
    input.add_generation_prompt = chat.add_generation_prompt();
  }
  if (chat.has_template_kwargs()) {
    const auto status = google::protobuf::util::MessageToJsonString(chat.template_kwargs(),
                                                                    &input.template_kwargs_json);
    if (!status.ok()) {
      return InvalidField("chat.template_kwargs", std::string(status.message()));
    }
  }
  return input;
}

bool AddsSpecialTokens(const v1::GenerateRequest& request) {
  return !request.has_add_special_tokens() || request.add_special_tokens();
}

// n bytes are at least n / max_token_bytes tokens.
absl::Status CheckCouldFit(size_t bytes, const ServedModel& model,
                           const v1::GenerateRequest& request, const PromptLimits& limits) {
  const size_t min_tokens = bytes / model.max_token_bytes;
  if (request.has_truncate_prompt_tokens() || min_tokens <= limits.max_tokens) {
    return absl::OkStatus();
  }
  return TooManyTokens(absl::StrCat("at least ", min_tokens), limits);
}

// What a tokenizer or a template refuses is the client's doing: its field is named.
absl::Status AtField(absl::string_view field, const absl::Status& status) {
  if (status.code() != absl::StatusCode::kInvalidArgument) return status;
  return InvalidField(field, status.message());
}

absl::StatusOr<std::vector<int32_t>> TokenizeChat(const ServedModel& model,
                                                  const v1::GenerateRequest& request,
                                                  const PromptLimits& limits, absl::Time now) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<text::TextSpan> spans,
                         RenderChat(model, request.chat(), limits.max_bytes, now));
  size_t bytes = 0;
  for (const text::TextSpan& span : spans) bytes += span.text.size();
  SHOAL_RETURN_IF_ERROR(CheckCouldFit(bytes, model, request, limits));
  auto ids = model.tokenizer->EncodeSpans(spans, AddsSpecialTokens(request));
  if (!ids.ok()) return AtField("chat", ids.status());
  return ids;
}

absl::StatusOr<std::vector<int32_t>> TokenizeText(const ServedModel& model,
                                                  const v1::GenerateRequest& request,
                                                  const PromptLimits& limits) {
  const size_t bytes = request.prompt().size();
  if (bytes > limits.max_bytes) return TooManyBytes("prompt", bytes, limits.max_bytes);
  SHOAL_RETURN_IF_ERROR(CheckCouldFit(bytes, model, request, limits));
  auto ids = model.tokenizer->Encode(
      request.prompt(), {.add_special = AddsSpecialTokens(request), .parse_special = false});
  if (!ids.ok()) return AtField("prompt", ids.status());
  return ids;
}

absl::Status CheckIds(const v1::TokenIds& ids, const ServedModel& model) {
  for (int i = 0; i < ids.ids_size(); ++i) {
    if (ids.ids(i) < model.vocab_size) continue;
    return InvalidField("token_ids",
                        absl::StrCat("[", i, "] = ", ids.ids(i), " is outside the vocabulary of ",
                                     model.vocab_size, " tokens"));
  }
  return absl::OkStatus();
}

// The ids that the request gives or its text becomes, before truncation.
absl::StatusOr<std::vector<uint32_t>> InputIds(const ServedModel& model,
                                               const v1::GenerateRequest& request,
                                               const PromptLimits& limits, absl::Time now) {
  if (request.has_token_ids()) {
    SHOAL_RETURN_IF_ERROR(CheckIds(request.token_ids(), model));
    const auto& ids = request.token_ids().ids();
    return std::vector<uint32_t>(ids.begin(), ids.end());
  }
  SHOAL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                         request.has_chat() ? TokenizeChat(model, request, limits, now)
                                            : TokenizeText(model, request, limits));
  return std::vector<uint32_t>(ids.begin(), ids.end());
}

size_t CountItems(const v1::ChatInput& chat) {
  size_t count = static_cast<size_t>(chat.messages_size()) + chat.tools_size();
  for (const v1::ChatMessage& message : chat.messages()) count += message.tool_calls_size();
  return count;
}

size_t TextBytes(const v1::ChatInput& chat) {
  size_t bytes = chat.template_kwargs().ByteSizeLong();
  for (const v1::ChatMessage& message : chat.messages()) bytes += message.ByteSizeLong();
  for (const v1::Tool& tool : chat.tools()) bytes += tool.ByteSizeLong();
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<text::TextSpan>> RenderChat(const ServedModel& model,
                                                       const v1::ChatInput& chat, size_t max_bytes,
                                                       absl::Time now) {
  if (model.chat_template == nullptr) {
    return InvalidField("chat", absl::StrCat("model ", model.name,
                                             " has no chat template: use prompt or token_ids"));
  }
  if (chat.messages().empty()) return InvalidField("chat.messages", "is empty");
  if (const size_t items = CountItems(chat); items > kMaxChatItems) {
    return InvalidField(
        "chat", absl::StrCat("has ", items, " messages, tools and tool calls together, at most ",
                             kMaxChatItems, " are allowed: leave some out"));
  }
  if (const size_t bytes = TextBytes(chat); bytes > max_bytes) {
    return TooManyBytes("chat", bytes, max_bytes);
  }
  SHOAL_ASSIGN_OR_RETURN(text::ChatInput input, ToChatInput(chat));
  auto spans = model.chat_template->Render(input, now);
  if (!spans.ok()) return AtField("chat", spans.status());
  if (!input.tools.empty()) {
    input.tools.clear();
    const auto without_tools = model.chat_template->Render(input, now);
    if (without_tools.ok() && *without_tools == *spans) {
      return InvalidField("chat.tools", absl::StrCat("the chat template of model ", model.name,
                                                     " makes no use of tools: leave them out, or "
                                                     "describe them in a message"));
    }
  }
  return spans;
}

absl::StatusOr<std::vector<uint32_t>> BuildPrompt(const ServedModel& model,
                                                  const v1::GenerateRequest& request,
                                                  const PromptLimits& limits, absl::Time now) {
  if (request.input_case() == v1::GenerateRequest::INPUT_NOT_SET) {
    return InvalidField("input", "is missing: set prompt, chat or token_ids");
  }
  SHOAL_ASSIGN_OR_RETURN(std::vector<uint32_t> ids, InputIds(model, request, limits, now));
  if (ids.empty()) {
    return InvalidField("input", "the prompt has no tokens, and this model adds none of its own");
  }
  const size_t keep = request.truncate_prompt_tokens();
  if (request.has_truncate_prompt_tokens() && ids.size() > keep) {
    ids.erase(ids.begin(), ids.end() - keep);
  }
  if (ids.size() > limits.max_tokens) return TooManyTokens(absl::StrCat(ids.size()), limits);
  return ids;
}

std::string TextOf(const ServedModel& model, absl::Span<const uint32_t> ids,
                   bool skip_special_tokens) {
  const std::vector<int32_t> signed_ids(ids.begin(), ids.end());
  auto text = model.tokenizer->Decode(signed_ids, skip_special_tokens);
  CHECK(text.ok()) << text.status();  // the ids were checked
  return *std::move(text);
}

}  // namespace shoal::router
