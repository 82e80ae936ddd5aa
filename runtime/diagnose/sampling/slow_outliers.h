// Finds the ranks of a large job that compute longer than before, or longer than ranks with the
// same work, from a few numbers of each rank. It only says whose spans are worth reading; the
// verdict comes from the spans. Pure functions.
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

// Returns the ranks that compute at least kOutlierMin times as long as expected, the rank that
// loses most time first. Expected is the rank's time before, times the factor by which most ranks
// have become slower. If its time before is not known, expected is the median of its data group,
// whose ranks do the same work. Requires: the ranks are those of the mesh, each once at most. Cost:
// O(n log n).
std::vector<int> SlowestRanks(const plan::Mesh& mesh, absl::Span<const ComputeTime> times);

// A rank stands out if it computes this many times as long as expected.
inline constexpr double kOutlierMin = 1.1;

}  // namespace megascale::diagnose
