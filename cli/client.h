#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "grpcpp/grpcpp.h"

namespace shoal::cli {

// What every command that calls a router gets. Data goes to `out`, all else to `err`.
struct Session {
  std::ostream* out;
  std::ostream* err;
  Format format = Format::kTable;
  std::string server = "127.0.0.1:8500";          // as ParseAddress gives it
  std::string admin = "127.0.0.1:8501";           // likewise
  absl::Duration timeout = absl::ZeroDuration();  // of a call; zero: the command's default
  Interrupt* interrupt = nullptr;                 // null: signals are not looked at (tests)
  bool out_is_terminal = false;
};

inline constexpr absl::Duration kDefaultTimeout = absl::Seconds(10);

// A channel that is connected: UNAVAILABLE as soon as the address refuses, or after 4 s.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(absl::string_view address);

// "INVALID_ARGUMENT".
std::string CodeName(grpc::StatusCode code);

// Tells the user, and returns the exit code. With JSON the error is on `out` too.
int ReportError(const Session& session, int exit_code, absl::string_view code,
                absl::string_view message);
// What the user asked for makes no sense: kExitUsage.
int ReportUsage(const Session& session, absl::string_view message);
int ReportUnreachable(const Session& session, const absl::Status& status);
// Of a call to `address` that had `timeout`, zero if none; what gRPC itself says is said in words.
int ReportRpc(const Session& session, const grpc::Status& status, absl::string_view address,
              absl::Duration timeout);

// The context of one call, cancelled by Ctrl-C while this lives.
class Call {
 public:
  // `timeout` is used if the session has none; zero or less: no deadline.
  Call(const Session& session, absl::Duration timeout);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  grpc::ClientContext* context() { return &context_; }
  absl::Duration timeout() const { return timeout_; }  // zero: none
  // Ends the wait for Ctrl-C. Returns whether it came.
  bool Finish();

 private:
  Interrupt* const interrupt_;
  const absl::Duration timeout_;
  grpc::ClientContext context_;
  bool finished_ = false;
  bool interrupted_ = false;
};

// One unary call from connecting to the exit code: kExitOk, or the error is reported.
//   CallUnary<v1::InferenceService>(session, session.server,
//       &v1::InferenceService::Stub::Tokenize, request, &response)
template <typename Service, typename Request, typename Response>
int CallUnary(const Session& session, absl::string_view address,
              grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&,
                                                    Response*),
              const Request& request, Response* response,
              absl::Duration timeout = kDefaultTimeout) {
  const auto channel = Connect(address);
  if (!channel.ok()) return ReportUnreachable(session, channel.status());
  const auto stub = Service::NewStub(*channel);
  Call call(session, timeout);
  const grpc::Status status = (stub.get()->*method)(call.context(), request, response);
  if (call.Finish()) return kExitInterrupted;
  return status.ok() ? kExitOk : ReportRpc(session, status, address, call.timeout());
}

}  // namespace shoal::cli
