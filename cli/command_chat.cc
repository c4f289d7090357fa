#include "cli/command_chat.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "cli/exit_code.h"
#include "shoal/v1/inference.grpc.pb.h"

namespace shoal::cli {
namespace {

void AddMessage(absl::string_view role, std::string content, v1::ChatInput* chat) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(std::string(role));
  message->set_content(std::move(content));
}

// Streams one answer into `answer` and to the user. kExitInterrupted after Ctrl-C.
int Answer(const Session& session, v1::InferenceService::Stub* stub,
           const v1::GenerateRequest& request, std::string* answer) {
  v1::GenerateStreamRequest stream_request;
  *stream_request.mutable_request() = request;
  Call call(session, absl::ZeroDuration());
  const auto reader = stub->GenerateStream(call.context(), stream_request);
  v1::GenerateStreamResponse response;
  while (reader->Read(&response)) {
    for (const v1::Choice& delta : response.deltas()) {
      *answer += delta.text();
      *session.out << (session.out_is_terminal ? WithoutControls(delta.text()) : delta.text())
                   << std::flush;
    }
  }
  const grpc::Status status = reader->Finish();
  *session.out << "\n" << std::flush;
  if (call.Finish()) return kExitInterrupted;
  return status.ok() ? kExitOk : ReportRpc(session, status);
}

}  // namespace

int RunChat(const Session& session, const ChatFlags& flags, std::istream* in) {
  v1::GenerateRequest request;
  const absl::Status applied = ApplySampling(flags.sampling, 1, &request);
  if (!applied.ok()) {
    return ReportError(session, kExitUsage, "INVALID_ARGUMENT", applied.message());
  }
  const auto channel = Connect(session.server);
  if (!channel.ok()) return ReportUnreachable(session, channel.status());
  const auto stub = v1::InferenceService::NewStub(*channel);
  v1::ChatInput* chat = request.mutable_chat();
  if (!flags.system.empty()) AddMessage("system", flags.system, chat);
  if (flags.is_interactive) {
    *session.err << "Ctrl-C stops an answer, Ctrl-D ends the conversation." << std::endl;
  }
  std::string line;
  while (true) {
    if (flags.is_interactive) *session.err << "> " << std::flush;
    if (!std::getline(*in, line)) break;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    AddMessage("user", line, chat);
    std::string answer;
    const int code = Answer(session, stub.get(), request, &answer);
    if (code != kExitOk && !flags.is_interactive) return code;
    const bool failed = code != kExitOk && code != kExitInterrupted;
    if (failed || answer.empty()) {
      chat->mutable_messages()->RemoveLast();  // as if it had not been asked
    } else {
      AddMessage("assistant", std::move(answer), chat);
    }
  }
  if (flags.is_interactive) *session.err << std::endl;
  return kExitOk;
}

}  // namespace shoal::cli
