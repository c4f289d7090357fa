#include "router/router_server.h"

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace shoal::router {
namespace {

// A prompt has 4 MiB at most; ids and JSON take more room on the wire. gRPC refuses more than this
// with RESOURCE_EXHAUSTED before a handler sees it.
constexpr int kMaxRequestBytes = 16 << 20;

void Configure(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4096);
  // Two servers on one port would share its clients without anybody noticing.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Clients may ping every 10 s, with or without a call.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // And a client that is gone without a word is noticed.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

absl::StatusOr<std::unique_ptr<grpc::Server>> StartServer(const std::string& address,
                                                          grpc::Service* service,
                                                          std::string* real_address) {
  grpc::ServerBuilder builder;
  Configure(&builder);
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": is the port free, and the address ours?"));
  }
  const size_t colon = address.rfind(':');
  *real_address = absl::StartsWith(address, "unix") || colon == std::string::npos
                      ? address
                      : absl::StrCat(address.substr(0, colon + 1), port);
  return server;
}

ServiceContext MakeContext(Engine* engine, RunningRequests* requests, const Frontend* frontend,
                           WorkLanes* lanes, std::function<absl::Time()> clock,
                           const RequestStream::Options& stream_options) {
  return {.engine = engine,
          .requests = requests,
          .frontend = frontend,
          .lanes = lanes,
          .clock = std::move(clock),
          .stream_options = stream_options};
}

}  // namespace

RouterServer::RouterServer(const Options& options, Engine* engine, Health* health,
                           std::function<absl::Time()> clock, Frontend::RandomSource random)
    : health_(health),
      frontend_(options.limits, std::move(random)),
      lanes_(options.lanes),
      inference_(MakeContext(engine, &requests_, &frontend_, &lanes_, clock, options.stream)),
      admin_(MakeContext(engine, &requests_, &frontend_, &lanes_, clock, options.stream),
             options.version) {}

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(Options options, Engine* engine,
                                                                  Health* health,
                                                                  std::function<absl::Time()> clock,
                                                                  Frontend::RandomSource random) {
  grpc::EnableDefaultHealthCheckService(true);
  std::unique_ptr<RouterServer> server(
      new RouterServer(options, engine, health, std::move(clock), std::move(random)));
  SHOAL_RETURN_IF_ERROR(server->Listen(options));
  return server;
}

absl::Status RouterServer::Listen(const Options& options) {
  SHOAL_ASSIGN_OR_RETURN(server_, StartServer(options.listen, &inference_, &address_));
  SHOAL_ASSIGN_OR_RETURN(admin_server_,
                         StartServer(options.admin_listen, &admin_, &admin_address_));
  health_->Attach(server_->GetHealthCheckService());
  health_->Attach(admin_server_->GetHealthCheckService());
  return absl::OkStatus();
}

RouterServer::~RouterServer() { Stop(); }

void RouterServer::StartDraining(absl::string_view reason) {
  health_->SetDraining();
  requests_.StartDraining(reason);
}

bool RouterServer::FinishDraining(absl::Duration timeout) {
  if (requests_.WaitUntilEmpty(timeout)) return true;
  LOG(WARNING) << requests_.List().size() << " requests outlast the drain timeout of " << timeout
               << " and are ended";
  requests_.CancelAll(absl::UnavailableError(
      absl::StrCat("the router is shutting down and its drain timeout of ",
                   absl::FormatDuration(timeout), " is over: resume on another")));
  return false;
}

void RouterServer::Stop() {
  requests_.StartDraining("the router is shutting down");
  // Health watches and silent clients stay open for as long as they are let.
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(1);
  requests_.CancelAll(absl::UnavailableError("the router is shutting down"));
  lanes_.Stop();
  if (server_ != nullptr) server_->Shutdown(deadline);
  if (admin_server_ != nullptr) admin_server_->Shutdown(deadline);
  health_->Detach();
  server_.reset();
  admin_server_.reset();
}

}  // namespace shoal::router
