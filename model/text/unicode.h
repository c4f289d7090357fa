#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace shoal::text {

// UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF.

// The offset of the first byte that is no part of a valid character; absl::string_view::npos when
// `bytes` is valid. A character that is cut off at the end is invalid.
size_t FindInvalidUtf8(absl::string_view bytes);

// The number of bytes of the character that starts with `lead`; 1 for bytes that start none.
size_t Utf8Length(char lead);

// REQUIRES: code_point <= 0x10FFFF, not a surrogate.
void AppendUtf8(char32_t code_point, std::string* out);

// Decodes the character at `*pos` of `text` and moves `*pos` behind it.
// REQUIRES: `text` is valid UTF-8, *pos < text.size() is the start of a character.
char32_t NextCodePoint(absl::string_view text, size_t* pos);

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
