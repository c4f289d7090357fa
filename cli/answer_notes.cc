#include "cli/answer_notes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace shoal::cli {
namespace {

double ToSeconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + 1e-9 * duration.nanos();
}

}  // namespace

void AnswerNotes::Add(const v1::Choice& choice) {
  if (choice.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    reasons_[choice.index()] = choice.finish_reason();
  }
}

void AnswerNotes::Add(const v1::GenerateStreamResponse& message) {
  for (const v1::Choice& delta : message.deltas()) Add(delta);
  if (message.has_usage()) usage_ = message.usage();
  if (message.has_timings()) timings_ = message.timings();
}

void AnswerNotes::Add(const v1::GenerateResponse& response) {
  for (const v1::Choice& choice : response.choices()) Add(choice);
  usage_ = response.usage();
  timings_ = response.timings();
}

std::string AnswerNotes::Cuts() const {
  const size_t num_choices = reasons_.size();
  std::string why = "the context is full";
  if (max_tokens_ > 0 && num_choices > 1) {  // usage is of all choices together: either may be it
    why = absl::StrCat("--max-tokens ", max_tokens_, ", or the end of the context");
  } else if (max_tokens_ > 0 && usage_.completion_tokens() >= max_tokens_) {
    why = absl::StrCat("--max-tokens ", max_tokens_);
  }
  std::string lines;
  for (const auto& [index, reason] : reasons_) {
    if (reason != v1::FINISH_REASON_LENGTH) continue;
    const std::string which = num_choices > 1 ? absl::StrCat("choice ", index, " ") : "";
    absl::StrAppend(&lines, "(", which, "stopped: ", why, ")\n");
  }
  return lines;
}

std::string AnswerNotes::Stats() const {
  const uint32_t num_tokens = usage_.completion_tokens();
  std::string line = absl::StrFormat(
      "%d prompt tokens (%d cached), %d output tokens, %.3f s to the first", usage_.prompt_tokens(),
      usage_.cached_prompt_tokens(), num_tokens, ToSeconds(timings_.time_to_first_token()));
  const double decode_s = ToSeconds(timings_.decode());
  if (num_tokens > 1 && decode_s > 0) {
    absl::StrAppend(&line, absl::StrFormat(", then %.1f tokens/s", (num_tokens - 1) / decode_s));
  }
  return line + "\n";
}

}  // namespace shoal::cli
