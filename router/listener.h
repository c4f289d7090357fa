#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::router {

// A listening socket and the thread that accepts its connections. It is ours and not gRPC's, which
// (1.51) never accepts again once accept() failed for want of descriptors. Connections are bounded
// by descriptors: one that would take the last of them is closed at once. A failing accept() is
// tried again.
class Listener {
 public:
  // HOST:PORT, [IPV6]:PORT (port 0: any free), unix:PATH, unix-abstract:NAME. INVALID_ARGUMENT for
  // anything else.
  static absl::Status CheckAddress(const std::string& address);

  // Listens; nothing is accepted before Start. A name of both families is IPv4's. Connections leave
  // `spared_files` descriptors more than they must, for another listener's. INVALID_ARGUMENT: see
  // CheckAddress. UNAVAILABLE: the address is taken, or not ours.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& address,
                                                        int spared_files = 0);
  ~Listener() { Stop(); }

  // `on_connection` owns each descriptor it is given (non-blocking); on the listener's thread.
  void Start(std::function<void(int fd)> on_connection);

  // Closes the socket: clients that come now are refused. No `on_connection` runs any more.
  void Stop();

  // With the real port.
  const std::string& address() const { return address_; }
  int fd() const { return fd_; }

 private:
  Listener(std::string address, std::string unix_path, int fd, int spared_files);
  void Run();
  void AcceptOne();

  const std::string address_;
  const std::string unix_path_;  // to be removed; empty: none
  int fd_ = -1;
  int wake_fd_ = -1;
  int max_fd_ = 0;  // of a connection
  std::function<void(int)> on_connection_;
  std::thread thread_;
};

}  // namespace shoal::router
