#include "router/parameters.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shoal::router {
namespace {

constexpr int kMaxStopStrings = 16;
constexpr size_t kMaxStopStringBytes = 256;
constexpr int kMaxStopTokenIds = 64;
constexpr uint32_t kMaxChoices = 64;
constexpr uint32_t kMaxTopLogprobs = 20;
constexpr size_t kMaxLogitBias = 1024;
constexpr size_t kMaxRequestIdBytes = 128;
constexpr size_t kMaxCacheSaltBytes = 256;

// A range of a float; NaN is in none because every comparison with it is false.
struct Range {
  float low = 0;
  float high = 0;
  bool open_low = false;  // `low` itself is out

  bool Holds(float value) const { return (open_low ? value > low : value >= low) && value <= high; }
  std::string ToString() const { return absl::StrCat(open_low ? "(" : "[", low, ", ", high, "]"); }
};

void CheckRange(absl::string_view field, float value, Range range, FieldViolations* violations) {
  if (range.Holds(value)) return;
  violations->Add(absl::StrCat("sampling.", field),
                  absl::StrCat("is ", value, ", must be in ", range.ToString()));
}

void CheckTokenId(absl::string_view field, uint32_t id, const ServedModel& model,
                  FieldViolations* violations) {
  if (id < model.vocab_size) return;
  violations->Add(field, absl::StrCat("token id ", id, " is outside the vocabulary of ",
                                      model.vocab_size, " tokens"));
}

std::vector<std::pair<uint32_t, float>> CheckLogitBias(const v1::SamplingParams& sampling,
                                                       const ServedModel& model,
                                                       FieldViolations* violations) {
  constexpr absl::string_view kField = "sampling.logit_bias";
  std::vector<std::pair<uint32_t, float>> bias;
  if (sampling.logit_bias().size() > kMaxLogitBias) {
    violations->Add(kField, absl::StrCat("has ", sampling.logit_bias().size(), " entries, at most ",
                                         kMaxLogitBias, " are allowed"));
    return bias;
  }
  for (const auto& [id, value] : sampling.logit_bias()) bias.emplace_back(id, value);
  std::sort(bias.begin(), bias.end());
  const Range range{-100, 100};
  for (const auto& [id, value] : bias) {
    CheckTokenId(kField, id, model, violations);
    if (!range.Holds(value)) {
      violations->Add(
          kField, absl::StrCat("of token ", id, " is ", value, ", must be in ", range.ToString()));
    }
  }
  return bias;
}

}  // namespace

SamplingParams CheckSampling(const v1::SamplingParams& sampling, const ServedModel& model,
                             FieldViolations* violations) {
  SamplingParams params;
  const auto take = [violations](bool has, float value, absl::string_view field, Range range,
                                 float* target) {
    if (!has) return;
    CheckRange(field, value, range, violations);
    *target = value;
  };
  take(sampling.has_temperature(), sampling.temperature(), "temperature", {0, 100},
       &params.temperature);
  take(sampling.has_top_p(), sampling.top_p(), "top_p", {0, 1, true}, &params.top_p);
  take(sampling.has_min_p(), sampling.min_p(), "min_p", {0, 1}, &params.min_p);
  take(sampling.has_repetition_penalty(), sampling.repetition_penalty(), "repetition_penalty",
       {0.01f, 100}, &params.repetition_penalty);
  take(sampling.has_presence_penalty(), sampling.presence_penalty(), "presence_penalty", {-2, 2},
       &params.presence_penalty);
  take(sampling.has_frequency_penalty(), sampling.frequency_penalty(), "frequency_penalty", {-2, 2},
       &params.frequency_penalty);
  if (sampling.has_top_k()) {
    if (sampling.top_k() < -1) {
      violations->Add("sampling.top_k",
                      absl::StrCat("is ", sampling.top_k(), ", must be -1 or 0 (off) or more"));
    }
    params.top_k = std::max(sampling.top_k(), 0);
  }
  params.logit_bias = CheckLogitBias(sampling, model, violations);
  return params;
}

void CheckStop(const v1::StopParams& stop, const ServedModel& model, FieldViolations* violations) {
  if (stop.stop_strings_size() > kMaxStopStrings) {
    violations->Add("stop.stop_strings",
                    absl::StrCat("has ", stop.stop_strings_size(), " strings, at most ",
                                 kMaxStopStrings, " are allowed"));
    return;  // millions of them are not looked at one by one
  }
  for (const std::string& text : stop.stop_strings()) {
    if (!text.empty() && text.size() <= kMaxStopStringBytes) continue;
    violations->Add(
        "stop.stop_strings",
        absl::StrCat("one has ", text.size(), " bytes, must have 1 to ", kMaxStopStringBytes));
  }
  if (stop.stop_token_ids_size() > kMaxStopTokenIds) {
    violations->Add("stop.stop_token_ids",
                    absl::StrCat("has ", stop.stop_token_ids_size(), " ids, at most ",
                                 kMaxStopTokenIds, " are allowed"));
    return;
  }
  for (uint32_t id : stop.stop_token_ids()) {
    CheckTokenId("stop.stop_token_ids", id, model, violations);
  }
  if (stop.min_tokens() > model.max_seq_len) {
    violations->Add("stop.min_tokens",
                    absl::StrCat("is ", stop.min_tokens(), ", the context holds ",
                                 model.max_seq_len, " tokens"));
  }
  if (stop.has_max_tokens() && stop.min_tokens() > stop.max_tokens()) {
    violations->Add("stop.min_tokens", absl::StrCat("is ", stop.min_tokens(),
                                                    ", more than max_tokens ", stop.max_tokens()));
  }
}

void CheckRequestFields(const v1::GenerateRequest& request, FieldViolations* violations) {
  if (request.has_n() && (request.n() < 1 || request.n() > kMaxChoices)) {
    violations->Add("n", absl::StrCat("is ", request.n(), ", must be 1 to ", kMaxChoices));
  }
  if (request.top_logprobs() > kMaxTopLogprobs) {
    violations->Add("top_logprobs", absl::StrCat("is ", request.top_logprobs(), ", must be 0 to ",
                                                 kMaxTopLogprobs));
  }
  if (!v1::Priority_IsValid(request.priority())) {
    violations->Add("priority", absl::StrCat(static_cast<int>(request.priority()), " is unknown"));
  }
  if (request.request_id().size() > kMaxRequestIdBytes) {
    violations->Add("request_id",
                    absl::StrCat("has ", request.request_id().size(), " bytes, at most ",
                                 kMaxRequestIdBytes, " are allowed"));
  }
  const auto is_graphic = [](unsigned char c) { return c > 0x20 && c < 0x7F; };
  if (!std::all_of(request.request_id().begin(), request.request_id().end(), is_graphic)) {
    // It is echoed in a header.
    violations->Add("request_id", "must be printable ASCII without spaces");
  }
  if (request.cache_salt().size() > kMaxCacheSaltBytes) {
    violations->Add("cache_salt",
                    absl::StrCat("has ", request.cache_salt().size(), " bytes, at most ",
                                 kMaxCacheSaltBytes, " are allowed"));
  }
  if (request.has_truncate_prompt_tokens() && request.truncate_prompt_tokens() == 0) {
    violations->Add("truncate_prompt_tokens", "is 0, must be 1 or more: a prompt cannot be empty");
  }
}

void CheckResume(const v1::GenerateRequest& request, const ServedModel& model,
                 FieldViolations* violations) {
  constexpr absl::string_view kField = "generated_token_ids";
  const auto& generated = request.generated_token_ids();
  if (generated.empty()) return;
  if (request.n() > 1) {
    violations->Add("n", absl::StrCat("is ", request.n(), ", only one choice can be resumed"));
  }
  const bool greedy = request.sampling().has_temperature() && request.sampling().temperature() == 0;
  if (!greedy && !request.sampling().has_seed()) {
    violations->Add("sampling.seed", "is needed to resume a stream: use the one it returned");
  }
  if (static_cast<size_t>(generated.size()) > model.max_seq_len) {
    violations->Add(kField, absl::StrCat("has ", generated.size(), " tokens, the context holds ",
                                         model.max_seq_len));
    return;
  }
  const auto& stop_ids = request.stop().stop_token_ids();
  for (int i = 0; i < generated.size(); ++i) {
    CheckTokenId(kField, generated[i], model, violations);
    const bool is_last = i + 1 == generated.size();
    const bool is_banned = static_cast<uint32_t>(i) < request.stop().min_tokens();
    const bool is_stop =
        std::find(stop_ids.begin(), stop_ids.end(), generated[i]) != stop_ids.end();
    const bool is_eos =
        !request.stop().ignore_eos() &&
        std::binary_search(model.eos_ids.begin(), model.eos_ids.end(), generated[i]);
    if (!is_last && !is_banned && (is_stop || is_eos)) {
      violations->Add(kField, absl::StrCat("[", i, "] = ", generated[i],
                                           " ends a stream, but more tokens follow it"));
    }
  }
}

}  // namespace shoal::router
