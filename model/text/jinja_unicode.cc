#include "model/text/jinja_unicode.h"

#include <string.h>

#include <algorithm>

#include "base/utf8.h"

namespace shoal::text::jinja {
namespace {

constexpr char32_t kInvalidByte = 0xDC00;

bool Within(char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; }

// Case pairs lie next to each other in these blocks, upper case first (on even or odd code points).
bool UpperIsEven(char32_t c) {
  return Within(c, 0x100, 0x12F) || Within(c, 0x132, 0x137) || Within(c, 0x14A, 0x177) ||
         Within(c, 0x1DE, 0x1EF) || Within(c, 0x1F8, 0x21F) || Within(c, 0x222, 0x233) ||
         Within(c, 0x3D8, 0x3EF) || Within(c, 0x460, 0x481) || Within(c, 0x48A, 0x4BF) ||
         Within(c, 0x4D0, 0x52F) || Within(c, 0x1E00, 0x1E95) || Within(c, 0x1EA0, 0x1EFF);
}

bool UpperIsOdd(char32_t c) {
  return Within(c, 0x139, 0x148) || Within(c, 0x179, 0x17E) || Within(c, 0x1CD, 0x1DC) ||
         Within(c, 0x4C1, 0x4CE);
}

std::u32string SortedCodePoints(absl::string_view s) {
  std::u32string set;
  for (size_t pos = 0; pos < s.size();) {
    set.push_back(DecodeCodePoint(s, &pos));
  }
  std::sort(set.begin(), set.end());
  return set;
}

template <typename Map>
std::string MapCodePoints(absl::string_view s, Map map) {
  std::string out;
  out.reserve(s.size());
  for (size_t pos = 0; pos < s.size();) {
    AppendCodePoint(map(DecodeCodePoint(s, &pos)), &out);
  }
  return out;
}

}  // namespace

char32_t DecodeCodePoint(absl::string_view s, size_t* pos) {
  const unsigned char lead = static_cast<unsigned char>(s[*pos]);
  if (lead < 0x80) {
    ++*pos;
    return lead;
  }
  if (base::Utf8CharacterSize(s.substr(*pos)) == 0) {
    ++*pos;
    return kInvalidByte + lead;
  }
  return base::NextCodePoint(s, pos);
}

void AppendCodePoint(char32_t c, std::string* out) {
  if (Within(c, kInvalidByte + 0x80, kInvalidByte + 0xFF)) {
    out->push_back(static_cast<char>(c - kInvalidByte));
  } else {
    base::AppendUtf8(c, out);
  }
}

size_t NumCodePoints(absl::string_view s) {
  size_t count = 0;
  for (size_t pos = 0; pos < s.size(); ++count) {
    DecodeCodePoint(s, &pos);
  }
  return count;
}

size_t ByteOffset(absl::string_view s, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < s.size(); --index) {
    DecodeCodePoint(s, &pos);
  }
  return pos;
}

bool IsSpace(char32_t c) {
  return c == ' ' || Within(c, 0x09, 0x0D) || Within(c, 0x1C, 0x1F) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || Within(c, 0x2000, 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsLineBreak(char32_t c) {
  return Within(c, 0x0A, 0x0D) || Within(c, 0x1C, 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool IsPrintable(char32_t c) {
  if (c < 0xA1) {
    return Within(c, 0x20, 0x7E);
  }
  const bool separator = IsSpace(c);
  const bool format = c == 0xAD || Within(c, 0x600, 0x605) || c == 0x61C || c == 0x6DD ||
                      c == 0x70F || c == 0x180E || Within(c, 0x200B, 0x200F) ||
                      Within(c, 0x202A, 0x202E) || Within(c, 0x2060, 0x206F) || c == 0xFEFF ||
                      Within(c, 0xFFF9, 0xFFFB) || Within(c, 0xE0000, 0xE0FFF);
  const bool not_a_character =
      Within(c, 0xD800, 0xF8FF) || (c & 0xFFFE) == 0xFFFE || c >= 0xF0000;  // surrogate, private
  return !separator && !format && !not_a_character;
}

char32_t ToLower(char32_t c) {
  if (c < 0x80) {
    return Within(c, 'A', 'Z') ? c + 32 : c;
  }
  if ((Within(c, 0xC0, 0xDE) && c != 0xD7) || (Within(c, 0x391, 0x3AB) && c != 0x3A2) ||
      Within(c, 0x410, 0x42F)) {
    return c + 32;
  }
  if (Within(c, 0x400, 0x40F)) {
    return c + 80;
  }
  if (Within(c, 0x531, 0x556)) {
    return c + 48;
  }
  if (c == 0x178) {
    return 0xFF;
  }
  if ((UpperIsEven(c) && c % 2 == 0) || (UpperIsOdd(c) && c % 2 == 1)) {
    return c + 1;
  }
  return c;
}

char32_t ToUpper(char32_t c) {
  if (c < 0x80) {
    return Within(c, 'a', 'z') ? c - 32 : c;
  }
  if ((Within(c, 0xE0, 0xFE) && c != 0xF7) || (Within(c, 0x3B1, 0x3CB) && c != 0x3C2) ||
      Within(c, 0x430, 0x44F)) {
    return c - 32;
  }
  if (Within(c, 0x450, 0x45F)) {
    return c - 80;
  }
  if (Within(c, 0x561, 0x586)) {
    return c - 48;
  }
  if (c == 0xFF) {
    return 0x178;
  }
  if ((UpperIsEven(c) && c % 2 == 1) || (UpperIsOdd(c) && c % 2 == 0)) {
    return c - 1;
  }
  return c;
}

std::string ToLower(absl::string_view s) {
  return MapCodePoints(s, [](char32_t c) { return ToLower(c); });
}

std::string ToUpper(absl::string_view s) {
  return MapCodePoints(s, [](char32_t c) { return ToUpper(c); });
}

std::pair<size_t, size_t> StripRange(absl::string_view s, const absl::string_view* chars, bool left,
                                     bool right) {
  const std::u32string set = chars == nullptr ? std::u32string() : SortedCodePoints(*chars);
  auto stripped = [&](char32_t c) {
    return chars == nullptr ? IsSpace(c) : std::binary_search(set.begin(), set.end(), c);
  };
  size_t begin = 0;
  size_t end = s.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!stripped(DecodeCodePoint(s, &next))) {
      break;
    }
    begin = next;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && end - last < 4 && base::IsUtf8Continuation(s[last])) {
      --last;
    }
    size_t next = last;
    char32_t c = DecodeCodePoint(s, &next);
    if (next != end) {  // stray continuation bytes: the last one alone
      last = end - 1;
      next = last;
      c = DecodeCodePoint(s, &next);
    }
    if (!stripped(c)) {
      break;
    }
    end = last;
  }
  return {begin, end};
}

size_t FindBytes(absl::string_view s, absl::string_view needle, size_t from) {
  if (from > s.size()) {
    return absl::string_view::npos;
  }
  if (needle.empty()) {
    return from;
  }
  // memmem is linear (two-way); string_view::find is quadratic on aaaa...ab.
  const void* hit = memmem(s.data() + from, s.size() - from, needle.data(), needle.size());
  return hit == nullptr ? absl::string_view::npos
                        : static_cast<size_t>(static_cast<const char*>(hit) - s.data());
}

}  // namespace shoal::text::jinja
