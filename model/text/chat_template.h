#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "model/text/jinja_limits.h"
#include "model/text/text_span.h"

namespace shoal::text {

// One turn of a conversation. Fields a role has no use for stay empty; the template sees `role` and
// `content` always, the others only if they are not empty.
struct ChatMessage {
  struct ToolCall {
    std::string id;
    std::string name;
    std::string arguments_json;  // an object; "" means {}
  };

  std::string role;
  std::string content;
  std::string name;
  std::string tool_call_id;       // of the call that a message of role "tool" answers
  std::string reasoning_content;  // what the model thought before `content`
  std::vector<ToolCall> tool_calls;
};

struct ChatTool {
  std::string name;
  std::string description;
  std::string parameters_json_schema;  // an object; "" means no parameters
};

struct ChatInput {
  std::vector<ChatMessage> messages;
  std::vector<ChatTool> tools;
  bool add_generation_prompt = true;
  std::string template_kwargs_json;  // an object of further variables for the template, or ""
};

// A model's chat template: a program in the subset of Jinja that such templates use, run as Hugging
// Face's transformers runs it (trim_blocks, lstrip_blocks, loop controls, raise_exception,
// strftime_now in UTC, tojson without HTML escapes, nothing can be mutated but namespaces). The
// template comes from a model file and the input from a client; neither is trusted.
//
// The result says of every byte whether it is the template's or the user's. Bytes are the
// template's if they come from its text, its string literals, or the bos and eos tokens; they stay
// so through + ~ * join trim strip replace and slices, set, filter and macro blocks, and whatever
// passes a string on unchanged. What any other operation makes is the user's, as are all inputs and
// printed numbers.
//
// Immutable, so any thread may render.
class ChatTemplate {
 public:
  // INVALID_ARGUMENT: a syntax error, or a tag, filter or test that does not exist, with its line.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(absl::string_view source,
                                                             absl::string_view bos_token,
                                                             absl::string_view eos_token,
                                                             TemplateLimits limits = {});
  ~ChatTemplate();

  // The prompt as maximal spans, none of them empty. INVALID_ARGUMENT: JSON in `input` is no object
  // or sets a variable of its own (messages ...), a limit is exceeded, the template fails on this
  // input, or it calls raise_exception (its message is then the status').
  absl::StatusOr<std::vector<TextSpan>> Render(const ChatInput& input, absl::Time now) const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<Program> program);

  const std::unique_ptr<Program> program_;
};

}  // namespace shoal::text
