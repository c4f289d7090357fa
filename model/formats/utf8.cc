#include "model/formats/utf8.h"

#include <cstddef>
#include <cstdint>

namespace shoal::model {
namespace {

// Bytes of the character that `lead` begins (0: it cannot begin one) and the range of its second
// byte, which is what excludes overlong forms and surrogates (Unicode, table 3-7).
struct Lead {
  size_t length;
  uint8_t second_min;
  uint8_t second_max;
};

Lead Classify(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xc2) return {0, 0, 0};
  if (lead < 0xe0) return {2, 0x80, 0xbf};
  if (lead == 0xe0) return {3, 0xa0, 0xbf};
  if (lead == 0xed) return {3, 0x80, 0x9f};
  if (lead < 0xf0) return {3, 0x80, 0xbf};
  if (lead == 0xf0) return {4, 0x90, 0xbf};
  if (lead < 0xf4) return {4, 0x80, 0xbf};
  if (lead == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

bool IsValidUtf8(absl::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const Lead lead = Classify(static_cast<uint8_t>(text[i]));
    if (lead.length == 0 || lead.length > text.size() - i) {
      return false;
    }
    for (size_t k = 1; k < lead.length; ++k) {
      const uint8_t byte = static_cast<uint8_t>(text[i + k]);
      const uint8_t min = k == 1 ? lead.second_min : 0x80;
      const uint8_t max = k == 1 ? lead.second_max : 0xbf;
      if (byte < min || byte > max) {
        return false;
      }
    }
    i += lead.length;
  }
  return true;
}

}  // namespace shoal::model
