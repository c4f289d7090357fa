#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace shoal::text {

// Finds the tokens that are recognised in a text before anything else: control tokens where the
// template wrote them, user-defined ones everywhere. The leftmost wins, the longest of those that
// start at one byte. A trie over bytes. Immutable once built, thread-safe.
class SpecialMatcher {
 public:
  struct Match {
    int32_t id;
    size_t begin, end;  // bytes
    bool is_control;
  };

  // REQUIRES: `token` is not empty and was not added before.
  void Add(absl::string_view token, int32_t id, bool is_control);

  // Whether a token starts at `pos`. User-defined tokens may end anywhere in `text`, control tokens
  // by `control_end`.
  std::optional<Match> LongestAt(absl::string_view text, size_t pos, size_t control_end) const;

 private:
  struct Node {
    int32_t id = -1;  // -1: no token ends here
    bool is_control = false;
  };

  static uint64_t EdgeKey(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<unsigned char>(byte);
  }

  std::vector<Node> nodes_ = {Node()};             // 0 is the root
  absl::flat_hash_map<uint64_t, uint32_t> edges_;  // EdgeKey -> node
  bool starts_[256] = {};                          // bytes that leave the root
};

}  // namespace shoal::text
