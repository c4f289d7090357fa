#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/server.h"
#include "router/admin_service.h"
#include "router/frontend.h"
#include "router/generate_call.h"
#include "router/health.h"
#include "router/inference_service.h"
#include "router/listener.h"
#include "router/outboxes.h"
#include "router/running_requests.h"
#include "router/work_lanes.h"

namespace shoal::router {

// The listeners of one router: clients on one, operators on the other. Both answer health checks,
// and reflection where the program linked it and initialised its plugin.
class RouterServer {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";        // see Listener::CheckAddress
    std::string admin_listen = "127.0.0.1:0";  // likewise
    std::string version;
    Frontend::Limits limits;
    RequestStream::Options stream;
    WorkLanes::Options lanes;
    Outboxes::Options outboxes;
  };

  // Serves from now on; requests are UNAVAILABLE while `engine` has no model. Errors: those of
  // Listener::Open. `engine` and `health` outlive the server, `health` shows its state.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(Options options, Engine* engine,
                                                             Health* health,
                                                             std::function<absl::Time()> clock,
                                                             Frontend::RandomSource random);
  // Stops, if Stop was not called.
  ~RouterServer();

  // Refuses new requests from now on, with UNAVAILABLE and pushback. Any thread; does not wait.
  void StartDraining(absl::string_view reason);

  // Waits until every request has ended, or ends the rest with UNAVAILABLE after `timeout`
  // (finite). Returns whether all ended by themselves.
  bool FinishDraining(absl::Duration timeout);

  // Closes the listeners and ends what runs with UNAVAILABLE. Returns when clients have their ends,
  // after a second at most. Open connections are served on: their requests hear UNAVAILABLE, until
  // the process exits. (gRPC's shutdown would answer CANCELLED what comes while it goes on.)
  void EndRequests();

  // And closes the connections. Returns when the last handler is done.
  void Stop();

  // With the real ports.
  const std::string& address() const { return clients_.listener->address(); }
  const std::string& admin_address() const { return operators_.listener->address(); }
  RunningRequests* requests() { return &requests_; }

 private:
  // A server of gRPC and the listener that brings its connections.
  struct Endpoint {
    std::unique_ptr<Listener> listener;
    std::unique_ptr<grpc::Server> server;
  };
  static absl::StatusOr<Endpoint> Serve(const std::string& address, int max_request_bytes,
                                        int spared_files, grpc::Service* service);

  RouterServer(const Options& options, Engine* engine, Health* health,
               std::function<absl::Time()> clock, Frontend::RandomSource random);
  absl::Status Listen(const Options& options);

  Health* const health_;
  const Frontend frontend_;
  Outboxes outboxes_;
  RunningRequests requests_;
  WorkLanes lanes_;
  const ServiceContext context_;
  InferenceService inference_;
  AdminService admin_;
  Endpoint clients_;
  Endpoint operators_;
  bool has_ended_requests_ = false;
  bool is_stopped_ = false;
};

}  // namespace shoal::router
