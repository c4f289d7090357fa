#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace shoal::text {

// Turns a stream of bytes, cut anywhere, into valid UTF-8. A character leaves when its last byte
// has come. Bytes that can no longer become a character are replaced: one U+FFFD for each maximal
// prefix of a character (the Unicode standard's recommended practice, 3.9), so the output depends
// on the bytes alone and not on where the stream was cut.
class Utf8Assembler {
 public:
  // Appends what has become certain to `out`.
  void Append(absl::string_view bytes, std::string* out);
  // The stream has ended: a character that is still incomplete becomes one U+FFFD.
  void Finish(std::string* out);

 private:
  void AppendByte(unsigned char byte, std::string* out);

  char pending_[4];          // an incomplete character
  size_t num_pending_ = 0;   // bytes in pending_
  size_t num_expected_ = 0;  // bytes of the whole character
};

}  // namespace shoal::text
