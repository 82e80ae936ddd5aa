// What people see of a large job's ranks: some of them, and the kinds of their devices.
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

// Chooses at most `ranks_max` of `num_ranks` ranks, those without progress for more than
// kQuietSeconds first, then the lowest, and returns their indices in ascending order.
// `quiet_seconds`: the time since the rank of an index made progress.
std::vector<int> ChooseShownRanks(int num_ranks, int ranks_max,
                                  const std::function<double(int)>& quiet_seconds);

struct DeviceKind {
  std::string name;
  int64_t memory_bytes = 0;  // of the first such device
  int num_ranks = 0;
};
// Counts the device of a rank. Devices are of one kind if their name and their memory as shown to a
// user are equal: the exact sizes of equal machines differ by some KiB.
void CountDevice(const v1::DeviceUse& device, std::vector<DeviceKind>* kinds);

}  // namespace megascale::telemetry
