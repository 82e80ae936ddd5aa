#include "runtime/base/text/nearest_name.h"

#include <algorithm>
#include <cstddef>

namespace megascale::base {

int EditDistance(absl::string_view a, absl::string_view b) {
  // distance[i][j]: between the first i characters of a and the first j of b.
  std::vector<std::vector<int>> distance(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = static_cast<int>(i + j);
        continue;
      }
      const int substituted = distance[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      int least = std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1, substituted});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        least = std::min(least, distance[i - 2][j - 2] + 1);
      }
      distance[i][j] = least;
    }
  }
  return distance[a.size()][b.size()];
}

std::string NearestName(absl::string_view name, const std::vector<std::string>& known) {
  constexpr size_t kNameLengthMax = 64;  // bounds the work on absurd input
  if (name.size() > kNameLengthMax) return "";
  std::string nearest;
  int least = 0;
  for (const std::string& candidate : known) {
    const int allowed = std::max(1, static_cast<int>(std::max(name.size(), candidate.size()) / 3));
    const int distance = EditDistance(name, candidate);
    if (distance > allowed || (!nearest.empty() && distance >= least)) continue;
    nearest = candidate;
    least = distance;
  }
  return nearest;
}

}  // namespace megascale::base
