// Which ranks of a large job people look at.
// Threads: plain functions.
#pragma once

#include <functional>
#include <vector>

namespace megascale::telemetry {

// Longer without progress is worth a word.
inline constexpr double kQuietSeconds = 3;

// Chooses at most `ranks_max` of `num_ranks` ranks, those without progress for more than
// kQuietSeconds first, then the lowest, and returns their indices in ascending order.
// `quiet_seconds`: the time since the rank of an index made progress.
std::vector<int> ChooseShownRanks(int num_ranks, int ranks_max,
                                  const std::function<double(int)>& quiet_seconds);

}  // namespace megascale::telemetry
