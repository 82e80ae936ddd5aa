// What people see of a large job's ranks: some of the ranks, and the kinds of their devices.
// Threads: plain functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proto/telemetry.pb.h"

namespace megascale::telemetry {

// Ranks that made no progress for longer than this are shown first.
inline constexpr double kQuietSeconds = 3;

// Chooses at most `ranks_max` of `num_ranks` ranks: first those without progress for more than
// kQuietSeconds, then the lowest. Returns their indices in ascending order. `quiet_seconds`
// returns, for the index of a rank, the time since the rank made progress.
std::vector<int> ChooseShownRanks(int num_ranks, int ranks_max,
                                  const std::function<double(int)>& quiet_seconds);

struct DeviceKind {
  std::string name;
  int64_t memory_bytes = 0;  // of the first such device
  int num_ranks = 0;
};
// Counts the device of a rank. Devices are of one kind if they have the same name, and the same
// memory in the form that a user sees, because the exact sizes on equal machines differ by some
// KiB.
void CountDevice(const v1::DeviceUse& device, std::vector<DeviceKind>* kinds);

}  // namespace megascale::telemetry
