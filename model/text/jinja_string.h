#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "model/text/text_span.h"

namespace shoal::text::jinja {

enum class Origin : uint8_t { kUser, kTemplate };

// Bytes that remember where they came from, as maximal runs of one origin:
//
//   bytes  <|im_start|>user\n
//   runs   {end 12, template} {end 16, user} {end 17, template}
//
// Only Append with kTemplate makes template bytes; everything else copies marks along with bytes.
class MarkedString {
 public:
  MarkedString() = default;
  MarkedString(absl::string_view bytes, Origin origin) { Append(bytes, origin); }

  absl::string_view bytes() const { return absl::string_view(bytes_.data(), bytes_.size()); }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  // Bytes of memory to account for, marks included.
  size_t MemoryBytes() const { return sizeof(*this) + bytes_.size() + kRunCost * runs_.size(); }

  // `other` must not be *this.
  void Append(absl::string_view bytes, Origin origin);
  void Append(const MarkedString& other) { AppendRange(other, 0, other.size()); }

  // Appends bytes [begin, end) of `other`, which must not be *this. REQUIRES begin <= end <= size.
  void AppendRange(const MarkedString& other, size_t begin, size_t end);

  MarkedString Slice(size_t begin, size_t end) const;

  std::vector<TextSpan> Spans() const;

 private:
  struct Run {
    size_t end;  // in bytes, exclusive; a run begins where the one before it ends
    Origin origin;
  };
  static constexpr size_t kRunCost = sizeof(Run) + sizeof(TextSpan);  // it may become a span

  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace shoal::text::jinja
