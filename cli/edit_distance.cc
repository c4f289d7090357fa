#include "cli/edit_distance.h"

#include <algorithm>
#include <cstddef>

namespace shoal::cli {
namespace {

// Optimal string alignment: row i, column j of the table is the distance of the first i and j
// characters.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> table(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        table[i][j] = i + j;
        continue;
      }
      const size_t replace = table[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      table[i][j] = std::min({table[i - 1][j] + 1, table[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        table[i][j] = std::min(table[i][j], table[i - 2][j - 2] + 1);
      }
    }
  }
  return table[a.size()][b.size()];
}

}  // namespace

std::string Nearest(absl::string_view wrong, const std::vector<std::string>& names) {
  if (wrong.size() > 64) return "";  // nobody's typing error
  std::string nearest;
  size_t best = std::max<size_t>(wrong.size() / 3, 1) + 1;
  for (const std::string& name : names) {
    const size_t distance = Distance(wrong, name);
    if (distance < best) {
      best = distance;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace shoal::cli
