#include "cli/command_generate.h"

#include <istream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "cli/answer_notes.h"
#include "cli/exit_code.h"
#include "shoal/v1/inference.grpc.pb.h"

namespace shoal::cli {
namespace {

absl::StatusOr<v1::GenerateRequest> MakeRequest(const GenerateFlags& flags, std::istream* in) {
  v1::GenerateRequest request;
  SHOAL_RETURN_IF_ERROR(ApplySampling(flags.sampling, flags.n, &request));
  if (!flags.system.empty() && !flags.chat) {
    return absl::InvalidArgumentError("--system has no effect without --chat");
  }
  if (flags.chat && flags.prompt_ids) {
    return absl::InvalidArgumentError("--prompt-ids cannot go with --chat");
  }
  std::string prompt = absl::StrJoin(flags.words, " ");
  if (flags.words.empty() || prompt == "-") prompt.assign(std::istreambuf_iterator<char>(*in), {});
  if (flags.words.empty() && prompt.empty()) {
    return absl::InvalidArgumentError("PROMPT is missing, and stdin is empty");
  }
  if (flags.chat) {
    if (!flags.system.empty()) {
      v1::ChatMessage* system = request.mutable_chat()->add_messages();
      system->set_role("system");
      system->set_content(flags.system);
    }
    v1::ChatMessage* message = request.mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(std::move(prompt));
  } else if (flags.prompt_ids) {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, ParseTokenIds(prompt));
    request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  } else {
    request.set_prompt(std::move(prompt));
  }
  request.set_n(flags.n);
  if (flags.logprobs.has_value()) request.set_top_logprobs(*flags.logprobs);
  request.set_return_token_ids(flags.ids);
  request.set_echo(flags.echo);
  request.set_request_id(flags.request_id);
  return request;
}

std::string LogprobCell(const v1::TokenLogprob& token) {
  // The bytes are shown as a string literal, so that spaces and newlines can be seen.
  std::string text;
  for (const char c : EscapeBytes(token.token_bytes())) {
    absl::StrAppend(&text, c == '\n' ? "\\n" : c == '\t' ? "\\t" : absl::string_view(&c, 1));
  }
  return absl::StrFormat("\"%s\" %.4f", text, token.logprob());
}

std::string LogprobTable(const std::vector<v1::PositionLogprobs>& positions) {
  Table table({"ID", "TOKEN AND LOGPROB", "BEST"});
  for (const v1::PositionLogprobs& position : positions) {
    const std::string top =
        absl::StrJoin(position.top(), "  ", [](std::string* out, const v1::TokenLogprob& token) {
          absl::StrAppend(out, LogprobCell(token));
        });
    table.AddRow({absl::StrCat(position.chosen().token_id()), LogprobCell(position.chosen()), top});
  }
  return table.ToString();
}

// Prints choices. With one choice, text or ids appear as they come; several are kept and printed
// one after the other, each under a header.
class ChoicePrinter {
 public:
  ChoicePrinter(const Session& session, const GenerateFlags& flags)
      : session_(session), flags_(flags) {}

  void Add(const v1::Choice& delta) {
    Kept& kept = kept_[delta.index()];
    kept.logprobs.insert(kept.logprobs.end(), delta.logprobs().begin(), delta.logprobs().end());
    std::string text;
    if (!flags_.ids) {
      text = session_.out_is_terminal ? WithoutControls(delta.text()) : delta.text();
    } else if (delta.token_ids_size() > 0) {
      text = absl::StrCat(kept.is_empty ? "" : " ", absl::StrJoin(delta.token_ids(), " "));
    }
    if (!text.empty()) {
      kept.is_empty = false;
      is_empty_ = false;
    }
    if (flags_.n > 1) {
      kept.text += text;
    } else {
      *session_.out << text << std::flush;
    }
  }

  // `failed`: the call did. What came of its text stays, with its line ended.
  void Finish(bool failed) {
    if (failed && is_empty_) return;
    if (flags_.n <= 1) *session_.out << "\n";
    for (const auto& [index, kept] : kept_) {
      if (flags_.n > 1) *session_.out << "--- choice " << index << "\n" << kept.text << "\n";
      if (flags_.logprobs.has_value()) *session_.out << "\n" << LogprobTable(kept.logprobs);
    }
    *session_.out << std::flush;
  }

 private:
  struct Kept {
    std::string text;
    bool is_empty = true;
    std::vector<v1::PositionLogprobs> logprobs;
  };

  const Session& session_;
  const GenerateFlags& flags_;
  bool is_empty_ = true;
  std::map<uint32_t, Kept> kept_;  // by index
};

// After the text, on stderr.
void PrintNotes(const Session& session, const GenerateFlags& flags, const AnswerNotes& notes) {
  *session.err << notes.Cuts() << (flags.sampling.stats ? notes.Stats() : "") << std::flush;
}

int RunUnary(const Session& session, const GenerateFlags& flags,
             const v1::GenerateRequest& request) {
  v1::GenerateResponse response;
  const int code = CallUnary<v1::InferenceService>(session, session.server,
                                                   &v1::InferenceService::Stub::Generate, request,
                                                   &response, absl::ZeroDuration());
  if (code != kExitOk) return code;
  AnswerNotes notes(flags.sampling.max_tokens);
  notes.Add(response);
  if (session.format == Format::kJson) {
    *session.out << ToJson(response) << std::flush;
  } else {
    ChoicePrinter printer(session, flags);
    for (const v1::Choice& choice : response.choices()) printer.Add(choice);
    printer.Finish(/*failed=*/false);
  }
  PrintNotes(session, flags, notes);
  return kExitOk;
}

int RunStream(const Session& session, const GenerateFlags& flags, v1::GenerateRequest request) {
  const auto channel = Connect(session.server);
  if (!channel.ok()) return ReportUnreachable(session, channel.status());
  const auto stub = v1::InferenceService::NewStub(*channel);
  v1::GenerateStreamRequest stream_request;
  *stream_request.mutable_request() = std::move(request);
  Call call(session, absl::ZeroDuration());
  const auto reader = stub->GenerateStream(call.context(), stream_request);
  ChoicePrinter printer(session, flags);
  AnswerNotes notes(flags.sampling.max_tokens);
  v1::GenerateStreamResponse response;
  while (reader->Read(&response)) {
    for (const v1::Choice& delta : response.deltas()) printer.Add(delta);
    notes.Add(response);
    if (session.out->bad()) call.context()->TryCancel();  // nobody would see the rest
  }
  const grpc::Status status = reader->Finish();
  printer.Finish(!status.ok());
  if (call.Finish()) return kExitInterrupted;
  if (session.out->bad()) return kExitRuntime;
  if (!status.ok()) return ReportRpc(session, status, session.server, call.timeout());
  PrintNotes(session, flags, notes);
  return kExitOk;
}

// "ID:BIAS" into the map.
absl::Status AddLogitBias(absl::string_view text, v1::SamplingParams* sampling) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  uint32_t id = 0;
  float bias = 0;
  if (!absl::SimpleAtoi(parts.first, &id) || !absl::SimpleAtof(parts.second, &bias)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--logit-bias ", text, " is not ID:BIAS, as in 42:-100"));
  }
  (*sampling->mutable_logit_bias())[id] = bias;
  return absl::OkStatus();
}

v1::Priority PriorityOf(absl::string_view name) {
  if (name == "low") return v1::PRIORITY_LOW;
  if (name == "high") return v1::PRIORITY_HIGH;
  return v1::PRIORITY_UNSPECIFIED;
}

void ApplyStop(const SamplingFlags& flags, v1::StopParams* stop) {
  if (flags.max_tokens > 0) stop->set_max_tokens(flags.max_tokens);
  stop->set_min_tokens(flags.min_tokens);
  for (const std::string& text : flags.stop) stop->add_stop_strings(Unescape(text));
  stop->set_ignore_eos(flags.ignore_eos);
}

}  // namespace

absl::Status ApplySampling(const SamplingFlags& flags, uint32_t n, v1::GenerateRequest* request) {
  const bool filters =
      flags.top_p.has_value() || flags.top_k.has_value() || flags.min_p.has_value();
  if (filters && flags.temperature == 0.0f) {
    return absl::InvalidArgumentError(
        "--top-p, --top-k and --min-p have no effect with --temperature 0, which is greedy");
  }
  const bool samples = filters || flags.seed.has_value() || n > 1;
  v1::SamplingParams* sampling = request->mutable_sampling();
  sampling->set_temperature(flags.temperature.value_or(samples ? 1.0f : 0.0f));
  if (flags.top_p.has_value()) sampling->set_top_p(*flags.top_p);
  if (flags.top_k.has_value()) sampling->set_top_k(*flags.top_k);
  if (flags.min_p.has_value()) sampling->set_min_p(*flags.min_p);
  if (flags.repetition_penalty.has_value()) {
    sampling->set_repetition_penalty(*flags.repetition_penalty);
  }
  if (flags.presence_penalty.has_value()) sampling->set_presence_penalty(*flags.presence_penalty);
  if (flags.frequency_penalty.has_value()) {
    sampling->set_frequency_penalty(*flags.frequency_penalty);
  }
  for (const std::string& bias : flags.logit_bias) {
    SHOAL_RETURN_IF_ERROR(AddLogitBias(bias, sampling));
  }
  if (flags.seed.has_value()) sampling->set_seed(*flags.seed);
  ApplyStop(flags, request->mutable_stop());
  request->set_model(flags.model);
  request->set_priority(PriorityOf(flags.priority));
  request->set_cache_salt(flags.cache_salt);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(absl::string_view text) {
  std::vector<uint32_t> ids;
  for (absl::string_view part :
       absl::StrSplit(text, absl::ByAnyChar(", \t\r\n"), absl::SkipEmpty())) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(part, &id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", part, "\" is no token id: give numbers, as in 1,2,3"));
    }
    ids.push_back(id);
  }
  return ids;
}

int RunGenerate(const Session& session, const GenerateFlags& flags, std::istream* in) {
  absl::StatusOr<v1::GenerateRequest> request = MakeRequest(flags, in);
  if (!request.ok()) return ReportUsage(session, request.status().message());
  if (flags.no_stream || session.format == Format::kJson) return RunUnary(session, flags, *request);
  return RunStream(session, flags, *std::move(request));
}

}  // namespace shoal::cli
