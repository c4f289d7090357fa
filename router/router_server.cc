#include "router/router_server.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace shoal::router {
namespace {

// A prompt has 4 MiB at most; ids and JSON take more room on the wire. gRPC refuses more than this
// with RESOURCE_EXHAUSTED before a handler sees it.
constexpr int kMaxRequestBytes = 16 << 20;
constexpr int kMaxAdminRequestBytes = 1 << 20;

// What a server may keep for the bytes on its connections; beyond, gRPC refuses new connections and
// ends calls.
constexpr size_t kMaxTransportBytes = 512 << 20;

// Descriptors that clients cannot take from operators.
constexpr int kOperatorFiles = 32;

// How long EndRequests lets clients take the last answers.
constexpr absl::Duration kStopGrace = absl::Seconds(1);

void Configure(int max_request_bytes, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(max_request_bytes);
  builder->SetResourceQuota(grpc::ResourceQuota("router").Resize(kMaxTransportBytes));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4096);
  // Who connects has to say something soon.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  // Clients may ping every 10 s, with or without a call.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // And a client that is gone without a word is noticed.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

}  // namespace

RouterServer::RouterServer(const Options& options, Engine* engine, Health* health,
                           std::function<absl::Time()> clock, Frontend::RandomSource random)
    : health_(health),
      frontend_(options.limits, std::move(random)),
      outboxes_(options.outboxes),
      lanes_(options.lanes),
      context_{.engine = engine,
               .requests = &requests_,
               .frontend = &frontend_,
               .lanes = &lanes_,
               .outboxes = &outboxes_,
               .clock = std::move(clock),
               .stream_options = options.stream},
      inference_(context_),
      admin_(context_, options.version) {}

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

absl::StatusOr<RouterServer::Endpoint> RouterServer::Serve(const std::string& address,
                                                           int max_request_bytes, int spared_files,
                                                           grpc::Service* service) {
  using Builder = grpc::ServerBuilder;
  Endpoint endpoint;
  SHOAL_ASSIGN_OR_RETURN(endpoint.listener, Listener::Open(address, spared_files));
  Builder builder;
  Configure(max_request_bytes, &builder);
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(
          Builder::experimental_type::ExternalConnectionType::FROM_FD,
          grpc::InsecureServerCredentials());
  builder.RegisterService(service);
  endpoint.server = builder.BuildAndStart();
  if (endpoint.server == nullptr) {
    return absl::InternalError(absl::StrCat("gRPC cannot serve on ", address));
  }
  // The listener's only: std::function wants it copyable.
  endpoint.listener->Start([acceptor, listener_fd = endpoint.listener->fd()](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener_fd;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  });
  return endpoint;
}

absl::Status RouterServer::Listen(const Options& options) {
  SHOAL_ASSIGN_OR_RETURN(clients_,
                         Serve(options.listen, kMaxRequestBytes, kOperatorFiles, &inference_));
  SHOAL_ASSIGN_OR_RETURN(operators_,
                         Serve(options.admin_listen, kMaxAdminRequestBytes, 0, &admin_));
  health_->Attach(clients_.server->GetHealthCheckService());
  health_->Attach(operators_.server->GetHealthCheckService());
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

void RouterServer::EndRequests() {
  if (std::exchange(has_ended_requests_, true)) return;
  for (Endpoint* endpoint : {&clients_, &operators_}) {
    if (endpoint->listener != nullptr) endpoint->listener->Stop();
  }
  requests_.StartDraining("the router is shutting down");
  requests_.CancelAll(absl::UnavailableError("the router is shutting down"));
  lanes_.Stop();
  requests_.WaitUntilEmpty(kStopGrace);
}

void RouterServer::Stop() {
  if (std::exchange(is_stopped_, true)) return;
  EndRequests();
  // At once: health watches and silent clients would stay for as long as they are let.
  const auto now = std::chrono::system_clock::now();
  for (Endpoint* endpoint : {&clients_, &operators_}) {
    if (endpoint->server != nullptr) endpoint->server->Shutdown(now);
  }
  health_->Detach();
  clients_.server.reset();
  operators_.server.reset();
}

}  // namespace shoal::router
