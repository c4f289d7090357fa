#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace shoal::text::jinja {

// UTF-8 as Python's str sees it: lengths, indices and classes are of code points. Bytes that are no
// UTF-8 count as one code point each and are kept as they are.

// Decodes the code point at *pos and moves *pos past it. An invalid byte b gives U+DC00 + b.
// REQUIRES *pos < s.size().
char32_t DecodeCodePoint(absl::string_view s, size_t* pos);

// Inverse of DecodeCodePoint, invalid bytes included.
void AppendCodePoint(char32_t c, std::string* out);

size_t NumCodePoints(absl::string_view s);

// Byte offset of code point `index`; s.size() if there are not so many.
size_t ByteOffset(absl::string_view s, size_t index);

bool IsSpace(char32_t c);      // str.isspace
bool IsLineBreak(char32_t c);  // where str.splitlines splits
bool IsPrintable(char32_t c);  // what repr() shows as itself; unassigned code points count as so

// Simple case mapping of ASCII, Latin, Greek, Cyrillic and Armenian letters.
char32_t ToLower(char32_t c);
char32_t ToUpper(char32_t c);
std::string ToLower(absl::string_view s);
std::string ToUpper(absl::string_view s);

// The bytes [begin, end) of `s` that remain when code points of `chars` are stripped from the sides
// asked for; white space if `chars` is null.
std::pair<size_t, size_t> StripRange(absl::string_view s, const absl::string_view* chars, bool left,
                                     bool right);

// First occurrence of `needle` at or after `from`, in linear time; npos if none.
size_t FindBytes(absl::string_view s, absl::string_view needle, size_t from);

}  // namespace shoal::text::jinja
