#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace shoal::base {

// UTF-8 as Unicode defines it (table 3-7): no overlong forms, no surrogates, nothing above
// U+10FFFF.

// The number of bytes of the character that `lead` starts; 0 if it can start none.
inline size_t Utf8LengthFromLead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;  // continuation bytes; C0 and C1 start only overlong forms
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

inline bool IsUtf8Continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// Whether `second` may follow `lead`, which starts a character of two bytes or more.
inline bool IsUtf8Second(unsigned char lead, unsigned char second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return IsUtf8Continuation(second);
  }
}

// The number of bytes of the character at the start of `text`; 0 if there is none, or it is cut off
// or otherwise invalid.
inline size_t Utf8CharacterSize(absl::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t length = Utf8LengthFromLead(byte(0));
  if (length > text.size()) return 0;
  if (length > 1 && !IsUtf8Second(byte(0), byte(1))) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (!IsUtf8Continuation(byte(i))) return 0;
  }
  return length;
}

// The offset of the first byte that is no part of a valid character; absl::string_view::npos when
// `bytes` is valid. A character that is cut off at the end is invalid.
inline size_t FindInvalidUtf8(absl::string_view bytes) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    const size_t size = Utf8CharacterSize(bytes.substr(pos));
    if (size == 0) return pos;
    pos += size;
  }
  return absl::string_view::npos;
}

inline bool IsValidUtf8(absl::string_view bytes) {
  return FindInvalidUtf8(bytes) == absl::string_view::npos;
}

// Decodes the character at `*pos` of `text` and moves `*pos` behind it.
// REQUIRES: a valid character starts at *pos.
inline char32_t NextCodePoint(absl::string_view text, size_t* pos) {
  const auto lead = static_cast<unsigned char>(text[*pos]);
  const size_t length = Utf8LengthFromLead(lead);
  char32_t code_point = length == 1 ? lead : lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    code_point = code_point << 6 | (static_cast<unsigned char>(text[*pos + i]) & 0x3F);
  }
  *pos += length;
  return code_point;
}

// REQUIRES: code_point <= 0x10FFFF, not a surrogate.
inline void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [out](char32_t bits) { out->push_back(static_cast<char>(bits)); };
  if (code_point < 0x80) {
    put(code_point);
    return;
  }
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      put(0xE0 | code_point >> 12);
    } else {
      put(0xF0 | code_point >> 18);
      put(0x80 | (code_point >> 12 & 0x3F));
    }
    put(0x80 | (code_point >> 6 & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

}  // namespace shoal::base
