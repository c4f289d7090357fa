#include "cli/command_chat.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/answer_notes.h"
#include "cli/exit_code.h"
#include "shoal/v1/inference.grpc.pb.h"

namespace shoal::cli {
namespace {

constexpr char kHelp[] =
    "/clear, /reset  forget the conversation\n"
    "/exit, /quit    end, as Ctrl-D does\n"
    "/help           this\n"
    "Ctrl-C stops an answer. Every other line is a message; \\ at its end: it goes on in the "
    "next.\n";

class Conversation {
 public:
  // `request` has everything but messages. `stub` outlives this.
  Conversation(const Session& session, const ChatFlags& flags, v1::GenerateRequest request,
               uint32_t context_tokens, v1::InferenceService::Stub* stub)
      : session_(session),
        flags_(flags),
        context_tokens_(context_tokens),
        stub_(stub),
        request_(std::move(request)) {
    Clear();
  }

  void Clear() {
    request_.mutable_chat()->clear_messages();
    if (!flags_.system.empty()) Add("system", flags_.system);
    num_kept_ = request_.chat().messages_size();
  }

  // One turn. An answer that failed leaves no trace.
  int Ask(std::string message) {
    Add("user", std::move(message));
    MakeRoom();
    std::string answer;
    const int code = Answer(&answer);
    const bool failed = code != kExitOk && code != kExitInterrupted;
    if (failed || answer.empty()) {
      request_.mutable_chat()->mutable_messages()->RemoveLast();
    } else {
      Add("assistant", std::move(answer));
    }
    return code;
  }

 private:
  void Add(absl::string_view role, std::string content) {
    v1::ChatMessage* message = request_.mutable_chat()->add_messages();
    message->set_role(std::string(role));
    message->set_content(std::move(content));
  }

  // Tokens of the conversation as the model will see it; 0 if the router does not say.
  uint32_t CountTokens() {
    v1::ApplyChatTemplateRequest request;
    request.set_model(request_.model());
    *request.mutable_chat() = request_.chat();
    v1::ApplyChatTemplateResponse response;
    Call call(session_, kDefaultTimeout);
    const grpc::Status status = stub_->ApplyChatTemplate(call.context(), request, &response);
    return status.ok() ? response.ids_size() : 0;
  }

  // Drops the oldest question and answer until a quarter of the context, or what an answer may have
  // if that is less, is free. The last question stays: if it alone is too long the router says so.
  void MakeRoom() {
    uint32_t reserve = context_tokens_ / 4;
    if (request_.stop().has_max_tokens()) {
      reserve = std::min(reserve, request_.stop().max_tokens());
    }
    auto* messages = request_.mutable_chat()->mutable_messages();
    int num_dropped = 0;
    while (messages->size() >= num_kept_ + 3 && CountTokens() + reserve > context_tokens_) {
      messages->DeleteSubrange(num_kept_, 2);
      num_dropped += 2;
    }
    if (num_dropped == 0) return;
    *session_.err << "(the context of " << context_tokens_ << " tokens is full: the oldest "
                  << num_dropped << " messages are forgotten)" << std::endl;
  }

  // Streams one answer into `answer` and to the user. kExitInterrupted after Ctrl-C.
  int Answer(std::string* answer) {
    v1::GenerateStreamRequest stream_request;
    *stream_request.mutable_request() = request_;
    Call call(session_, absl::ZeroDuration());
    const auto reader = stub_->GenerateStream(call.context(), stream_request);
    AnswerNotes notes(flags_.sampling.max_tokens);
    v1::GenerateStreamResponse response;
    while (reader->Read(&response)) {
      for (const v1::Choice& delta : response.deltas()) {
        *answer += delta.text();
        *session_.out << (session_.out_is_terminal ? WithoutControls(delta.text()) : delta.text())
                      << std::flush;
      }
      notes.Add(response);
      if (session_.out->bad()) call.context()->TryCancel();  // nobody would see the rest
    }
    const grpc::Status status = reader->Finish();
    if (status.ok() || !answer->empty()) *session_.out << "\n" << std::flush;
    if (call.Finish()) return kExitInterrupted;
    if (session_.out->bad()) return kExitRuntime;
    if (!status.ok()) return ReportRpc(session_, status, session_.server, call.timeout());
    *session_.err << notes.Cuts() << (flags_.sampling.stats ? notes.Stats() : "") << std::flush;
    return kExitOk;
  }

  const Session& session_;
  const ChatFlags& flags_;
  const uint32_t context_tokens_;
  v1::InferenceService::Stub* const stub_;
  v1::GenerateRequest request_;
  int num_kept_ = 0;  // messages that are never dropped: the system's
};

// What a line that starts with '/' does. A message may start so too, if it has more than a word.
enum class Typed { kMessage, kDone, kExit };
Typed RunCommand(const Session& session, absl::string_view line, Conversation* conversation) {
  const absl::string_view word = absl::StripAsciiWhitespace(line);
  if (!absl::StartsWith(word, "/") || absl::StrContains(word, ' ')) return Typed::kMessage;
  if (word == "/exit" || word == "/quit") return Typed::kExit;
  if (word == "/clear" || word == "/reset") {
    conversation->Clear();
    *session.err << "(forgotten)" << std::endl;
  } else if (word == "/help") {
    *session.err << kHelp << std::flush;
  } else {
    *session.err << "There is no command " << word << ": /help lists them." << std::endl;
  }
  return Typed::kDone;
}

absl::StatusOr<v1::GenerateRequest> MakeRequest(const ChatFlags& flags) {
  SamplingFlags sampling = flags.sampling;
  if (!sampling.temperature.has_value()) sampling.temperature = ChatFlags::kTemperature;
  if (!sampling.repetition_penalty.has_value() && *sampling.temperature > 0) {
    sampling.repetition_penalty = ChatFlags::kRepetitionPenalty;
  }
  v1::GenerateRequest request;
  const absl::Status applied = ApplySampling(sampling, 1, &request);
  if (!applied.ok()) return applied;
  return request;
}

}  // namespace

int RunChat(const Session& session, const ChatFlags& flags, const LineSource& next_line) {
  absl::StatusOr<v1::GenerateRequest> request = MakeRequest(flags);
  if (!request.ok()) return ReportUsage(session, request.status().message());
  v1::GetModelRequest model_request;
  model_request.set_model(flags.sampling.model);
  v1::GetModelResponse response;
  const int found = CallUnary<v1::InferenceService>(
      session, session.server, &v1::InferenceService::Stub::GetModel, model_request, &response);
  if (found != kExitOk) return found;
  const v1::ModelInfo& model = response.model();
  const auto channel = Connect(session.server);
  if (!channel.ok()) return ReportUnreachable(session, channel.status());
  const auto stub = v1::InferenceService::NewStub(*channel);
  Conversation conversation(session, flags, *std::move(request), model.max_context_tokens(),
                            stub.get());
  if (flags.is_interactive) {
    *session.err << model.name() << ", " << model.max_context_tokens()
                 << " tokens of context. /help lists commands; Ctrl-C stops an answer, Ctrl-D ends."
                 << std::endl;
  }
  std::string line;
  while (next_line(&line)) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    if (flags.is_interactive) {
      const Typed typed = RunCommand(session, line, &conversation);
      if (typed == Typed::kExit) return kExitOk;
      if (typed == Typed::kDone) continue;
    }
    const int code = conversation.Ask(line);
    if (session.out->bad() || (code != kExitOk && !flags.is_interactive)) return code;
  }
  if (flags.is_interactive) *session.err << std::endl;
  return kExitOk;
}

}  // namespace shoal::cli
