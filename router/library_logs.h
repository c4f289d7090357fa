#pragma once

namespace shoal::router {

// What gRPC and protobuf have to say goes to our log, a line or so a second: clients can cause it,
// with broken messages and connections.
void TakeLibraryLogs();

}  // namespace shoal::router
