#include "runtime/telemetry/shown_ranks.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace megascale::telemetry {

std::vector<int> ChooseShownRanks(int num_ranks, int ranks_max,
                                  const std::function<double(int)>& quiet_seconds) {
  std::vector<int> shown(static_cast<size_t>(num_ranks));
  std::iota(shown.begin(), shown.end(), 0);
  if (num_ranks <= ranks_max) return shown;
  std::stable_partition(shown.begin(), shown.end(),
                        [&](int rank) { return quiet_seconds(rank) > kQuietSeconds; });
  shown.resize(static_cast<size_t>(ranks_max));
  std::sort(shown.begin(), shown.end());
  return shown;
}

}  // namespace megascale::telemetry
