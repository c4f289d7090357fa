#include "router/library_logs.h"

#include <string>

#include "glog/logging.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"

namespace shoal::router {
namespace {

constexpr double kIntervalS = 1;

void TakeGrpcLog(gpr_log_func_args* args) {
  if (args->severity != GPR_LOG_SEVERITY_ERROR) return;
  LOG_EVERY_T(WARNING, kIntervalS) << "gRPC: " << args->message;
}

void TakeProtobufLog(google::protobuf::LogLevel level, const char* file, int line,
                     const std::string& message) {
  // Also where protobuf ends the process itself after this.
  LOG_EVERY_T(WARNING, kIntervalS) << "protobuf: " << message;
}

}  // namespace

void TakeLibraryLogs() {
  gpr_set_log_function(TakeGrpcLog);
  google::protobuf::SetLogHandler(TakeProtobufLog);
}

}  // namespace shoal::router
