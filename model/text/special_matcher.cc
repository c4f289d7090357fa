#include "model/text/special_matcher.h"

#include <glog/logging.h>

namespace shoal::text {

void SpecialMatcher::Add(absl::string_view token, int32_t id, bool is_control) {
  CHECK(!token.empty());
  uint32_t node = 0;
  for (const char byte : token) {
    const auto [edge, is_new] =
        edges_.try_emplace(EdgeKey(node, byte), static_cast<uint32_t>(nodes_.size()));
    if (is_new) nodes_.emplace_back();
    node = edge->second;
  }
  CHECK_EQ(nodes_[node].id, -1) << "token " << id << " was added before";
  nodes_[node] = {id, is_control};
  starts_[static_cast<unsigned char>(token[0])] = true;
}

std::optional<SpecialMatcher::Match> SpecialMatcher::LongestAt(absl::string_view text, size_t pos,
                                                               size_t control_end) const {
  if (!starts_[static_cast<unsigned char>(text[pos])]) return std::nullopt;
  std::optional<Match> longest;
  uint32_t node = 0;
  for (size_t end = pos; end < text.size();) {
    const auto edge = edges_.find(EdgeKey(node, text[end]));
    if (edge == edges_.end()) break;
    node = edge->second;
    ++end;
    const Node& found = nodes_[node];
    if (found.id >= 0 && (!found.is_control || end <= control_end)) {
      longest = Match{found.id, pos, end, found.is_control};
    }
  }
  return longest;
}

}  // namespace shoal::text
