#pragma once

#include <ostream>
#include <streambuf>
#include <string>

namespace shoal::cli {

// Writes to a file descriptor, which it does not own, and knows why a write failed: std::cout
// forgets. Like every ostream it is bad from then on.
class FdStream : public std::ostream {
 public:
  explicit FdStream(int fd) : std::ostream(nullptr), buffer_(fd) { rdbuf(&buffer_); }

  // Of the first write that failed; 0: none did. Flush first.
  int error() const { return buffer_.error; }

 private:
  class Buffer : public std::streambuf {
   public:
    explicit Buffer(int fd) : fd_(fd) {}
    int error = 0;

   protected:
    int_type overflow(int_type c) override;
    std::streamsize xsputn(const char* bytes, std::streamsize size) override;
    int sync() override;

   private:
    const int fd_;
    std::string pending_;
  };

  Buffer buffer_;
};

}  // namespace shoal::cli
