#pragma once

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <ctime>
#include <string>

#include "glog/logging.h"

namespace shoal::base {

// Writes the program's log to standard error, but never waits for whoever reads it: lines that
// cannot be written at once are dropped, and the next one that can says how many. (glog itself
// would wait, with its lock held, and so would every thread that logs.) Fatal messages are left to
// glog. From its construction on; the program keeps it until it exits. One per process.
class StderrSink final : public google::LogSink {
 public:
  explicit StderrSink(int fd = STDERR_FILENO) : fd_(OpenNonBlocking(fd)) {
    FLAGS_logtostderr = false;
    FLAGS_alsologtostderr = false;
    FLAGS_stderrthreshold = google::GLOG_FATAL;
    for (int severity = google::GLOG_INFO; severity < google::NUM_SEVERITIES; ++severity) {
      google::SetLogDestination(severity, "");  // no files
    }
    google::AddLogSink(this);
  }
  ~StderrSink() override {
    google::RemoveLogSink(this);
    if (fd_.is_own) close(fd_.number);
  }

  using google::LogSink::send;
  void send(google::LogSeverity severity, const char* full_filename, const char* base_filename,
            int line, const google::LogMessageTime& time, const char* message,
            size_t message_length) override {
    if (severity >= google::GLOG_FATAL) return;
    std::string text = ToString(severity, base_filename, line, time, message, message_length);
    if (text.size() >= kMaxLineBytes) text.resize(kMaxLineBytes - 1);
    text += '\n';
    if (num_dropped_ > 0) {
      const std::string note =
          std::to_string(num_dropped_) + " log lines were dropped: nobody read them\n";
      if (!TryWrite(note)) {
        ++num_dropped_;
        return;
      }
      num_dropped_ = 0;
    }
    if (!TryWrite(text)) ++num_dropped_;
  }

 private:
  // A pipe takes up to this much whole, or not at all.
  static constexpr size_t kMaxLineBytes = PIPE_BUF;

  struct Descriptor {
    int number = -1;
    bool is_own = false;
    bool is_socket = false;
  };

  // The flag of `fd` itself is shared with other processes. Files never make one wait.
  static Descriptor OpenNonBlocking(int fd) {
    struct stat info;
    if (fstat(fd, &info) != 0) return {.number = fd};
    if (S_ISSOCK(info.st_mode)) return {.number = fd, .is_socket = true};
    if (!S_ISFIFO(info.st_mode) && !S_ISCHR(info.st_mode)) return {.number = fd};
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    const int own = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return own >= 0 ? Descriptor{.number = own, .is_own = true} : Descriptor{.number = fd};
  }

  bool TryWrite(const std::string& text) const {
    if (!fd_.is_own && !fd_.is_socket) {  // where the flag could not be had, ask before
      pollfd polled = {.fd = fd_.number, .events = POLLOUT, .revents = 0};
      if (poll(&polled, 1, 0) != 1 || (polled.revents & POLLOUT) == 0) return false;
    }
    const ssize_t written =
        fd_.is_socket ? ::send(fd_.number, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                      : write(fd_.number, text.data(), text.size());
    return written == static_cast<ssize_t>(text.size());
  }

  const Descriptor fd_;
  size_t num_dropped_ = 0;  // glog calls send under a lock
};

}  // namespace shoal::base
