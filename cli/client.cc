#include "cli/client.h"

#include <unistd.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/exit_code.h"

namespace shoal::cli {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(4);
constexpr int kMaxMessageBytes = 64 << 20;

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
      return absl::UnavailableError(
          absl::StrCat("cannot connect to ", address, ": is a router running there?"));
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
  *session.err << (color ? "\033[31merror:\033[0m " : "error: ") << code << ": "
               << WithoutControls(message) << std::endl;
  return exit_code;
}

int ReportUnreachable(const Session& session, const absl::Status& status) {
  return ReportError(session, kExitCannotConnect, absl::StatusCodeToString(status.code()),
                     status.message());
}

int ReportRpc(const Session& session, const grpc::Status& status) {
  return ReportError(session, kExitRpcBase + status.error_code(), CodeName(status.error_code()),
                     status.error_message());
}

Call::Call(const Session& session, absl::Duration timeout) : interrupt_(session.interrupt) {
  if (session.timeout > absl::ZeroDuration()) timeout = session.timeout;
  if (timeout > absl::ZeroDuration()) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
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
