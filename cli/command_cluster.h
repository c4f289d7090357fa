#pragma once

#include <string>

#include "absl/time/time.h"
#include "cli/client.h"

namespace shoal::cli {

// The cluster and its workers. JSON: {"cluster": GetClusterStatusResponse, "workers": [Worker]}.
int RunStatus(const Session& session);
// The running and waiting requests, oldest first. `now` gives their age.
int RunPs(const Session& session, absl::Time now);
int RunCancel(const Session& session, const std::string& request_id, const std::string& reason);
int RunModels(const Session& session);
// grpc.health.v1 at the client listener: kExitUnhealthy unless `service` is SERVING.
int RunHealth(const Session& session, const std::string& service);

}  // namespace shoal::cli
