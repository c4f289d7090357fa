// Chat templates and conversations as hostile bytes: template NUL content NUL kwargs JSON. Nothing
// crashes, a rendering keeps its limits, spans are maximal, and the user's text stays the user's.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "model/text/chat_template.h"

namespace {

constexpr char kSnowman[] = "\xE2\x98\x83";

// Whether a template could write a snowman on its own, as text or as an escape.
bool MayWriteSnowman(absl::string_view source) {
  return absl::StrContains(source, '\\') || absl::StrContains(source, '\xE2') ||
         absl::StrContains(source, '\x98') || absl::StrContains(source, '\x83');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::vector<absl::string_view> parts = absl::StrSplit(bytes, absl::MaxSplits('\0', 2));
  shoal::text::TemplateLimits limits;
  limits.max_steps = 20'000;
  limits.max_output_bytes = 1 << 16;
  limits.max_memory_bytes = 1 << 22;
  const auto chat_template = shoal::text::ChatTemplate::Parse(parts[0], "<s>", "</s>", limits);
  if (!chat_template.ok()) {
    return 0;
  }
  shoal::text::ChatInput input;
  shoal::text::ChatMessage& message = input.messages.emplace_back();
  message.role = "user";
  message.content = absl::StrCat(kSnowman, parts.size() > 1 ? parts[1] : "", kSnowman);
  message.tool_calls = {{"id", kSnowman, absl::StrCat("{\"", kSnowman, "\": [1, 2.5, null]}")}};
  input.messages.push_back(message);
  input.tools = {{"f", kSnowman, ""}};
  input.template_kwargs_json = std::string(parts.size() > 2 ? parts[2] : "");
  const auto spans = (*chat_template)->Render(input, absl::FromUnixSeconds(1'700'000'000));
  if (!spans.ok()) {
    return 0;
  }
  size_t total = 0;
  for (size_t i = 0; i < spans->size(); ++i) {
    const shoal::text::TextSpan& span = (*spans)[i];
    CHECK(!span.text.empty());
    CHECK(i == 0 || span.is_template != (*spans)[i - 1].is_template);
    CHECK(!span.is_template || MayWriteSnowman(parts[0]) ||
          !absl::StrContains(span.text, kSnowman));
    total += span.text.size();
  }
  CHECK_LE(total, limits.max_output_bytes);
  return 0;
}
