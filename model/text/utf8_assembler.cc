#include "model/text/utf8_assembler.h"

#include "base/utf8.h"

namespace shoal::text {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

void Utf8Assembler::Append(absl::string_view bytes, std::string* out) {
  for (const char byte : bytes) AppendByte(static_cast<unsigned char>(byte), out);
}

void Utf8Assembler::AppendByte(unsigned char byte, std::string* out) {
  if (num_pending_ > 0) {
    const auto lead = static_cast<unsigned char>(pending_[0]);
    if (num_pending_ == 1 ? base::IsUtf8Second(lead, byte) : base::IsUtf8Continuation(byte)) {
      pending_[num_pending_++] = static_cast<char>(byte);
      if (num_pending_ == num_expected_) {
        out->append(pending_, num_pending_);
        num_pending_ = 0;
      }
      return;
    }
    Finish(out);
  }
  num_expected_ = base::Utf8LengthFromLead(byte);
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
