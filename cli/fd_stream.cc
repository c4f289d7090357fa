#include "cli/fd_stream.h"

#include <errno.h>
#include <unistd.h>

namespace shoal::cli {
namespace {

constexpr size_t kMaxPendingBytes = 64 << 10;

}  // namespace

FdStream::Buffer::int_type FdStream::Buffer::overflow(int_type c) {
  if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
  const char byte = traits_type::to_char_type(c);
  return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
}

std::streamsize FdStream::Buffer::xsputn(const char* bytes, std::streamsize size) {
  pending_.append(bytes, static_cast<size_t>(size));
  if (pending_.size() >= kMaxPendingBytes && sync() != 0) return 0;
  return size;
}

int FdStream::Buffer::sync() {
  size_t done = 0;
  while (done < pending_.size() && error == 0) {
    const ssize_t size = ::write(fd_, pending_.data() + done, pending_.size() - done);
    if (size >= 0) {
      done += static_cast<size_t>(size);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  pending_.clear();
  return error == 0 ? 0 : -1;
}

}  // namespace shoal::cli
