// Which ranks of a large job compute longer than they did, or than their like do, from a few
// numbers of each rank. It only says whose spans are worth reading: the verdict is that of the
// spans. Pure functions.
//
// Source: Jiang et al., NSDI '24 (MegaScale), 5: the heat map of all ranks' computing times comes
// first, then the traces of the ranks that stand out.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/mesh.h"

namespace megascale::diagnose {

// How long a rank computes in a step, on average, in seconds.
struct ComputeTime {
  int rank = 0;
  double before = 0;  // 0: not known
  double now = 0;     // > 0
};

// Returns the ranks that compute longer by kOutlierMin or more, those that lose most time first. A
// rank is compared with itself before and with what most ranks have changed; if no older step of it
// is known, with the ranks of its data group, which do the same work. Requires: the ranks are those
// of the mesh, each once at most. Cost: O(n log n).
std::vector<int> SlowestRanks(const plan::Mesh& mesh, absl::Span<const ComputeTime> times);

// A rank stands out if it computes this many times as long.
inline constexpr double kOutlierMin = 1.1;

}  // namespace megascale::diagnose
