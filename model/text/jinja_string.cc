#include "model/text/jinja_string.h"

#include <algorithm>

namespace shoal::text::jinja {

void MarkedString::Append(absl::string_view bytes, Origin origin) {
  if (bytes.empty()) {
    return;
  }
  bytes_.append(bytes.data(), bytes.size());
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

void MarkedString::AppendRange(const MarkedString& other, size_t begin, size_t end) {
  auto run = std::upper_bound(other.runs_.begin(), other.runs_.end(), begin,
                              [](size_t at, const Run& r) { return at < r.end; });
  for (; begin < end; ++run) {
    size_t stop = std::min(end, run->end);
    Append(other.bytes().substr(begin, stop - begin), run->origin);
    begin = stop;
  }
}

MarkedString MarkedString::Slice(size_t begin, size_t end) const {
  MarkedString result;
  result.AppendRange(*this, begin, end);
  return result;
}

std::vector<TextSpan> MarkedString::Spans() const {
  std::vector<TextSpan> spans;
  spans.reserve(runs_.size());
  size_t begin = 0;
  for (const Run& run : runs_) {
    spans.push_back({bytes_.substr(begin, run.end - begin), run.origin == Origin::kTemplate});
    begin = run.end;
  }
  return spans;
}

}  // namespace shoal::text::jinja
