#include "runtime/telemetry/shown_ranks.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "runtime/base/process/resource_limit.h"

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

void CountDevice(const v1::DeviceUse& device, std::vector<DeviceKind>* kinds) {
  const auto looks_alike = [&](int64_t memory_bytes) {
    return memory_bytes == device.memory_bytes() ||
           base::FormatBytes(memory_bytes) == base::FormatBytes(device.memory_bytes());
  };
  for (DeviceKind& kind : *kinds) {
    if (kind.name != device.name() || !looks_alike(kind.memory_bytes)) continue;
    ++kind.num_ranks;
    return;
  }
  kinds->push_back({device.name(), device.memory_bytes(), 1});
}

}  // namespace megascale::telemetry
