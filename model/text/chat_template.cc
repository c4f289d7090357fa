#include "model/text/chat_template.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_eval.h"
#include "model/text/jinja_json.h"
#include "model/text/jinja_parser.h"

namespace shoal::text {

using jinja::Context;
using jinja::Dict;
using jinja::Kind;
using jinja::MarkedString;
using jinja::Origin;
using jinja::Value;

struct ChatTemplate::Program {
  jinja::Body body;
  MarkedString bos_token;
  MarkedString eos_token;
  TemplateLimits limits;
};

namespace {

void Set(Context& context, absl::string_view name, const Value& value, Dict* dict) {
  dict->Set(context.NewUserString(name), value);
}

void SetString(Context& context, absl::string_view name, absl::string_view value, Dict* dict) {
  Set(context, name, context.NewUserString(value), dict);
}

absl::StatusOr<Value> ParseObject(Context& context, absl::string_view json,
                                  absl::string_view what) {
  absl::StatusOr<Value> value = jinja::ParseJson(context, json.empty() ? "{}" : json);
  if (!value.ok()) {
    return absl::Status(value.status().code(), absl::StrCat(what, ": ", value.status().message()));
  }
  if (!value->is(Kind::kDict)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " must be a JSON object, not ", value->TypeName()));
  }
  return value;
}

absl::StatusOr<Value> ToolCallValue(Context& context, const ChatMessage::ToolCall& call,
                                    absl::string_view where) {
  Dict function;
  SetString(context, "name", call.name, &function);
  SHOAL_ASSIGN_OR_RETURN(
      const Value arguments,
      ParseObject(context, call.arguments_json, absl::StrCat(where, ".function.arguments")));
  Set(context, "arguments", arguments, &function);
  Dict result;
  if (!call.id.empty()) {
    SetString(context, "id", call.id, &result);
  }
  SetString(context, "type", "function", &result);
  Set(context, "function", context.NewDict(std::move(function)), &result);
  return context.NewDict(std::move(result));
}

absl::StatusOr<Value> MessageValue(Context& context, const ChatMessage& message,
                                   absl::string_view where) {
  Dict result;
  SetString(context, "role", message.role, &result);
  SetString(context, "content", message.content, &result);
  const std::pair<absl::string_view, const std::string*> optional[] = {
      {"name", &message.name},
      {"tool_call_id", &message.tool_call_id},
      {"reasoning_content", &message.reasoning_content}};
  for (const auto& [name, value] : optional) {
    if (!value->empty()) {
      SetString(context, name, *value, &result);
    }
  }
  if (!message.tool_calls.empty()) {
    std::vector<Value> calls;
    for (size_t i = 0; i < message.tool_calls.size(); ++i) {
      SHOAL_ASSIGN_OR_RETURN(const Value call,
                             ToolCallValue(context, message.tool_calls[i],
                                           absl::StrCat(where, ".tool_calls[", i, "]")));
      calls.push_back(call);
    }
    Set(context, "tool_calls", context.NewList(std::move(calls)), &result);
  }
  return context.NewDict(std::move(result));
}

absl::StatusOr<Value> MessagesValue(Context& context, const std::vector<ChatMessage>& messages) {
  std::vector<Value> result;
  for (size_t i = 0; i < messages.size(); ++i) {
    SHOAL_RETURN_IF_ERROR(context.Step());
    SHOAL_ASSIGN_OR_RETURN(const Value message,
                           MessageValue(context, messages[i], absl::StrCat("messages[", i, "]")));
    result.push_back(message);
  }
  return context.NewList(std::move(result));
}

// None if there are no tools, as transformers has it.
absl::StatusOr<Value> ToolsValue(Context& context, const std::vector<ChatTool>& tools) {
  constexpr absl::string_view kNoParameters = R"({"type": "object", "properties": {}})";
  if (tools.empty()) {
    return Value::None();
  }
  std::vector<Value> result;
  for (size_t i = 0; i < tools.size(); ++i) {
    const ChatTool& tool = tools[i];
    SHOAL_ASSIGN_OR_RETURN(
        const Value parameters,
        ParseObject(
            context,
            tool.parameters_json_schema.empty() ? kNoParameters : tool.parameters_json_schema,
            absl::StrCat("tools[", i, "].parameters")));
    Dict function;
    SetString(context, "name", tool.name, &function);
    SetString(context, "description", tool.description, &function);
    Set(context, "parameters", parameters, &function);
    Dict entry;
    SetString(context, "type", "function", &entry);
    Set(context, "function", context.NewDict(std::move(function)), &entry);
    result.push_back(context.NewDict(std::move(entry)));
  }
  return context.NewList(std::move(result));
}

// The variables that a template sees: the client's, then our own.
absl::StatusOr<Dict> Variables(Context& context, const ChatInput& input,
                               const MarkedString& bos_token, const MarkedString& eos_token) {
  constexpr absl::string_view kOwn[] = {"messages", "tools", "documents", "add_generation_prompt"};
  Dict variables;
  Set(context, "bos_token", Value::String(&bos_token), &variables);
  Set(context, "eos_token", Value::String(&eos_token), &variables);
  SHOAL_ASSIGN_OR_RETURN(const Value kwargs,
                         ParseObject(context, input.template_kwargs_json, "template_kwargs"));
  for (const auto& [name, value] : kwargs.AsDict().entries()) {
    for (absl::string_view own : kOwn) {
      if (name.bytes() == own) {
        return absl::InvalidArgumentError(
            absl::StrCat("template_kwargs may not set '", own, "': use the request's own field"));
      }
    }
    variables.Set(name, value);
  }
  SHOAL_ASSIGN_OR_RETURN(const Value messages, MessagesValue(context, input.messages));
  SHOAL_ASSIGN_OR_RETURN(const Value tools, ToolsValue(context, input.tools));
  Set(context, "messages", messages, &variables);
  Set(context, "tools", tools, &variables);
  Set(context, "documents", Value::None(), &variables);
  Set(context, "add_generation_prompt", Value::Bool(input.add_generation_prompt), &variables);
  return variables;
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<Program> program) : program_(std::move(program)) {}
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(absl::string_view source,
                                                                  absl::string_view bos_token,
                                                                  absl::string_view eos_token,
                                                                  TemplateLimits limits) {
  SHOAL_ASSIGN_OR_RETURN(jinja::Body body, jinja::Parse(source));
  auto program = std::make_unique<Program>();
  program->body = std::move(body);
  program->bos_token = MarkedString(bos_token, Origin::kTemplate);
  program->eos_token = MarkedString(eos_token, Origin::kTemplate);
  program->limits = limits;
  return absl::WrapUnique(new ChatTemplate(std::move(program)));
}

absl::StatusOr<std::vector<TextSpan>> ChatTemplate::Render(const ChatInput& input,
                                                           absl::Time now) const {
  Context context(program_->limits, now);
  SHOAL_ASSIGN_OR_RETURN(const Dict variables,
                         Variables(context, input, program_->bos_token, program_->eos_token));
  MarkedString prompt;
  SHOAL_RETURN_IF_ERROR(jinja::Render(program_->body, variables, context, &prompt));
  return prompt.Spans();
}

}  // namespace shoal::text
