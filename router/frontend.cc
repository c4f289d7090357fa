#include "router/frontend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "router/parameters.h"
#include "router/prompt.h"
#include "router/rpc_status.h"

namespace shoal::router {
namespace {

// A prompt must leave room for one token, unless the request wants none.
uint32_t MaxPromptTokens(const ServedModel& model, const v1::StopParams& stop) {
  const bool wants_none = stop.has_max_tokens() && stop.max_tokens() == 0;
  return model.max_seq_len - (wants_none ? 0 : 1);
}

Priority ToPriority(v1::Priority priority) {
  switch (priority) {
    case v1::PRIORITY_LOW:
      return Priority::kLow;
    case v1::PRIORITY_HIGH:
      return Priority::kHigh;
    default:
      return Priority::kNormal;
  }
}

// Ids that end a sequence, banned while it has fewer than min_tokens.
std::vector<uint32_t> EndIds(const ServedModel& model, const v1::StopParams& stop) {
  std::vector<uint32_t> ids(stop.stop_token_ids().begin(), stop.stop_token_ids().end());
  if (!stop.ignore_eos()) ids.insert(ids.end(), model.eos_ids.begin(), model.eos_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// The part of a ValidRequest that needs neither the prompt nor randomness.
absl::StatusOr<ValidRequest> CheckParameters(const ServedModel& model,
                                             const v1::GenerateRequest& request) {
  FieldViolations violations;
  ValidRequest valid;
  valid.sampling = CheckSampling(request.sampling(), model, &violations);
  CheckStop(request.stop(), model, &violations);
  CheckRequestFields(request, &violations);
  CheckResume(request, model, &violations);
  SHOAL_RETURN_IF_ERROR(violations.ToStatus());

  const v1::StopParams& stop = request.stop();
  valid.sampling.min_tokens = stop.min_tokens();
  if (stop.min_tokens() > 0) valid.sampling.end_ids = EndIds(model, stop);
  valid.sampling.top_logprobs =
      request.has_top_logprobs() ? static_cast<int>(request.top_logprobs()) : -1;
  valid.sampling.prompt_logprobs = request.echo() && request.has_top_logprobs();
  valid.stop_token_ids.assign(stop.stop_token_ids().begin(), stop.stop_token_ids().end());
  valid.ignore_eos = stop.ignore_eos();
  valid.stop_strings.assign(stop.stop_strings().begin(), stop.stop_strings().end());
  valid.include_stop_in_output = stop.include_stop_in_output();
  valid.num_choices = request.has_n() ? request.n() : 1;
  valid.echo = request.echo();
  valid.return_token_ids = request.return_token_ids();
  valid.skip_special_tokens = !request.has_skip_special_tokens() || request.skip_special_tokens();
  valid.priority = ToPriority(request.priority());
  valid.cache_salt = request.cache_salt();
  valid.generated.assign(request.generated_token_ids().begin(),
                         request.generated_token_ids().end());
  return valid;
}

}  // namespace

absl::Status CheckModelName(const ServedModel& model, absl::string_view name) {
  if (model.Answers(name)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("model \"", name, "\" is not served here, \"", model.name, "\" is"));
}

absl::StatusOr<ValidRequest> Frontend::Validate(const ServedModel& model,
                                                const v1::GenerateRequest& request, absl::Time now,
                                                absl::Time deadline) const {
  SHOAL_RETURN_IF_ERROR(CheckModelName(model, request.model()));
  if (now >= deadline) return absl::DeadlineExceededError("the deadline passed before the start");
  SHOAL_ASSIGN_OR_RETURN(ValidRequest valid, CheckParameters(model, request));
  const PromptLimits limits{.max_bytes = limits_.max_prompt_bytes,
                            .max_tokens = MaxPromptTokens(model, request.stop())};
  SHOAL_ASSIGN_OR_RETURN(valid.prompt, BuildPrompt(model, request, limits, now));

  const uint32_t room = model.max_seq_len - static_cast<uint32_t>(valid.prompt.size());
  if (valid.generated.size() > room) {
    return InvalidField("generated_token_ids",
                        absl::StrCat("has ", valid.generated.size(), " tokens, after the prompt's ",
                                     valid.prompt.size(), " the context of ", model.max_seq_len,
                                     " has room for ", room));
  }
  if (request.stop().min_tokens() > room) {
    return InvalidField("stop.min_tokens",
                        absl::StrCat("is ", request.stop().min_tokens(), ", after the prompt's ",
                                     valid.prompt.size(), " tokens the context of ",
                                     model.max_seq_len, " has room for ", room));
  }
  valid.max_tokens =
      request.stop().has_max_tokens() ? std::min(request.stop().max_tokens(), room) : room;
  valid.request_id = request.request_id();
  if (valid.request_id.empty()) {
    const uint64_t high = random_();
    valid.request_id = absl::StrFormat("req-%016x%016x", high, random_());
  }
  valid.sampling.seed = request.sampling().has_seed() ? request.sampling().seed() : random_();
  valid.arrival = now;
  valid.deadline = deadline;
  return valid;
}

absl::StatusOr<v1::TokenizeResponse> Frontend::Tokenize(const ServedModel& model,
                                                        const v1::TokenizeRequest& request) const {
  SHOAL_RETURN_IF_ERROR(CheckModelName(model, request.model()));
  if (request.text().size() > limits_.max_prompt_bytes) {
    return InvalidField("text", absl::StrCat("has ", request.text().size(), " bytes, at most ",
                                             limits_.max_prompt_bytes, " are allowed: split it"));
  }
  const bool add_special = !request.has_add_special_tokens() || request.add_special_tokens();
  const auto ids = model.tokenizer->Encode(
      request.text(), {.add_special = add_special, .parse_special = request.parse_special()});
  if (!ids.ok()) return InvalidField("text", ids.status().message());
  if (ids->size() > limits_.max_listed_tokens) {
    return InvalidField("text", absl::StrCat("has ", ids->size(), " tokens, at most ",
                                             limits_.max_listed_tokens, " are listed: split it"));
  }
  v1::TokenizeResponse response;
  for (const int32_t id : *ids) {
    response.add_ids(id);
    response.add_pieces(model.tokenizer->TokenBytes(id));
  }
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> Frontend::Detokenize(
    const ServedModel& model, const v1::DetokenizeRequest& request) const {
  SHOAL_RETURN_IF_ERROR(CheckModelName(model, request.model()));
  for (int i = 0; i < request.ids_size(); ++i) {
    if (request.ids(i) < model.vocab_size) continue;
    return InvalidField(
        "ids", absl::StrCat("[", i, "] = ", request.ids(i), " is outside the vocabulary of ",
                            model.vocab_size, " tokens"));
  }
  size_t bytes = 0;
  for (const uint32_t id : request.ids()) bytes += model.tokenizer->TokenBytes(id).size();
  if (bytes > limits_.max_prompt_bytes) {
    return InvalidField("ids", absl::StrCat("stand for ", bytes, " bytes of text, at most ",
                                            limits_.max_prompt_bytes, " are allowed: split them"));
  }
  v1::DetokenizeResponse response;
  const bool skip_special = !request.has_skip_special_tokens() || request.skip_special_tokens();
  response.set_text(
      TextOf(model, {request.ids().data(), static_cast<size_t>(request.ids_size())}, skip_special));
  return response;
}

absl::StatusOr<v1::ApplyChatTemplateResponse> Frontend::ApplyChatTemplate(
    const ServedModel& model, const v1::ApplyChatTemplateRequest& request, absl::Time now) const {
  SHOAL_RETURN_IF_ERROR(CheckModelName(model, request.model()));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<text::TextSpan> spans,
                         RenderChat(model, request.chat(), limits_.max_prompt_bytes, now));
  const auto ids = model.tokenizer->EncodeSpans(spans, /*add_special=*/true);
  if (!ids.ok()) return InvalidField("chat", ids.status().message());
  v1::ApplyChatTemplateResponse response;
  for (const text::TextSpan& span : spans) response.mutable_prompt()->append(span.text);
  for (const int32_t id : *ids) response.add_ids(id);
  return response;
}

}  // namespace shoal::router
