#include "model/text/unicode.h"

namespace shoal::text {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// The length of the character that `lead` starts, 0 if it starts none.
size_t LengthFromLead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;  // continuation bytes; C0 and C1 start only overlong forms
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

// Whether `second` may follow `lead`: excludes overlong forms, surrogates and above U+10FFFF.
bool IsValidSecond(unsigned char lead, unsigned char second) {
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
      return second >= 0x80 && second <= 0xBF;
  }
}

bool IsContinuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

}  // namespace

size_t FindInvalidUtf8(absl::string_view bytes) {
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  size_t pos = 0;
  while (pos < bytes.size()) {
    const size_t length = LengthFromLead(data[pos]);
    if (length == 0 || length > bytes.size() - pos) return pos;
    if (length > 1 && !IsValidSecond(data[pos], data[pos + 1])) return pos;
    for (size_t i = 2; i < length; ++i) {
      if (!IsContinuation(data[pos + i])) return pos;
    }
    pos += length;
  }
  return absl::string_view::npos;
}

size_t Utf8Length(char lead) {
  const size_t length = LengthFromLead(static_cast<unsigned char>(lead));
  return length == 0 ? 1 : length;
}

void AppendUtf8(char32_t code_point, std::string* out) {
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

char32_t NextCodePoint(absl::string_view text, size_t* pos) {
  const auto lead = static_cast<unsigned char>(text[*pos]);
  const size_t length = LengthFromLead(lead);
  char32_t code_point = length == 1 ? lead : lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    code_point = code_point << 6 | (static_cast<unsigned char>(text[*pos + i]) & 0x3F);
  }
  *pos += length;
  return code_point;
}

void Utf8Assembler::Append(absl::string_view bytes, std::string* out) {
  for (const char byte : bytes) AppendByte(static_cast<unsigned char>(byte), out);
}

void Utf8Assembler::AppendByte(unsigned char byte, std::string* out) {
  if (num_pending_ > 0) {
    const auto lead = static_cast<unsigned char>(pending_[0]);
    if (num_pending_ == 1 ? IsValidSecond(lead, byte) : IsContinuation(byte)) {
      pending_[num_pending_++] = static_cast<char>(byte);
      if (num_pending_ == num_expected_) {
        out->append(pending_, num_pending_);
        num_pending_ = 0;
      }
      return;
    }
    Finish(out);
  }
  num_expected_ = LengthFromLead(byte);
  if (num_expected_ == 0) {
    out->append(kReplacement.data(), kReplacement.size());
  } else if (num_expected_ == 1) {
    out->push_back(static_cast<char>(byte));
  } else {
    pending_[0] = static_cast<char>(byte);
    num_pending_ = 1;
  }
}

void Utf8Assembler::Finish(std::string* out) {
  if (num_pending_ == 0) return;
  out->append(kReplacement.data(), kReplacement.size());
  num_pending_ = 0;
}

}  // namespace shoal::text
