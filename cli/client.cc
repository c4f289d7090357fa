#include "cli/client.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/address.h"
#include "cli/exit_code.h"

namespace shoal::cli {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(4);
constexpr int kMaxMessageBytes = 64 << 20;

absl::Duration TimeoutOf(const Session& session, absl::Duration fallback) {
  return std::max(absl::ZeroDuration(),
                  session.timeout > absl::ZeroDuration() ? session.timeout : fallback);
}

// What gRPC's own client says of a connection that broke under a call: no router's message.
bool IsLostConnection(const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return false;
  for (const char* text : {"Socket closed", "Connection reset by peer", "Broken pipe",
                           "Transport closed", "GOAWAY received", "Endpoint read failed",
                           "failed to connect to all addresses", "keepalive watchdog timeout"}) {
    if (absl::StartsWith(status.error_message(), text)) return true;
  }
  return false;
}

std::string Explain(const grpc::Status& status, absl::string_view address, absl::Duration timeout) {
  const std::string& message = status.error_message();
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
      timeout > absl::ZeroDuration()) {
    return absl::StrCat("not done after --timeout ", absl::ToDoubleSeconds(timeout), " s");
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED && message.empty()) {
    return absl::StrCat(address,
                        " does not know this call: --server is a router's address for clients "
                        "(port 8500 unless told), --admin the one for operators (8501)");
  }
  if (IsLostConnection(status)) {
    return absl::StrCat("the connection to ", address, " broke: the router stopped (", message,
                        ")");
  }
  return message;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(absl::string_view address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetUserAgentPrefix("shoalctl");
  auto channel = grpc::CreateCustomChannel(std::string(address), grpc::InsecureChannelCredentials(),
                                           arguments);
  const auto deadline = absl::ToChronoTime(absl::Now() + kConnectTimeout);
  while (true) {
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return channel;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) {
      const std::string unknown = WhyUnknownHost(std::string(address));
      return absl::UnavailableError(
          absl::StrCat("cannot connect to ", address, ": ",
                       unknown.empty() ? "is a router running there?" : unknown));
    }
    if (!channel->WaitForStateChange(state, deadline)) {
      return absl::UnavailableError(absl::StrCat("cannot connect to ", address, ": no answer in ",
                                                 absl::FormatDuration(kConnectTimeout)));
    }
  }
}

std::string CodeName(grpc::StatusCode code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

int ReportError(const Session& session, int exit_code, absl::string_view code,
                absl::string_view message) {
  if (session.format == Format::kJson) *session.out << ErrorJson(code, message) << std::flush;
  const bool color = session.interrupt != nullptr && MayColor(STDERR_FILENO);
  *session.err << (color ? "\033[31merror:\033[0m " : "error: ")
               << (exit_code == kExitUsage ? "" : absl::StrCat(code, ": "))
               << WithoutControls(message) << std::endl;
  return exit_code;
}

int ReportUsage(const Session& session, absl::string_view message) {
  return ReportError(session, kExitUsage, "INVALID_ARGUMENT", message);
}

int ReportUnreachable(const Session& session, const absl::Status& status) {
  return ReportError(session, kExitCannotConnect, absl::StatusCodeToString(status.code()),
                     status.message());
}

int ReportRpc(const Session& session, const grpc::Status& status, absl::string_view address,
              absl::Duration timeout) {
  return ReportError(session, kExitRpcBase + status.error_code(), CodeName(status.error_code()),
                     Explain(status, address, timeout));
}

Call::Call(const Session& session, absl::Duration timeout)
    : interrupt_(session.interrupt), timeout_(TimeoutOf(session, timeout)) {
  if (timeout_ > absl::ZeroDuration()) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  }
  if (interrupt_ != nullptr) interrupt_->Begin(&context_);
}

Call::~Call() { Finish(); }

bool Call::Finish() {
  if (!finished_ && interrupt_ != nullptr) interrupted_ = interrupt_->End();
  finished_ = true;
  return interrupted_;
}

}  // namespace shoal::cli
