// How far each machine is from the others in one window, and how unusual that is. Pure.
// Source: Deng et al., NSDI '25 (Minder), section 4.3.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "runtime/minder/denoiser.h"

namespace megascale::minder {

// With more machines than this, only the distances to this many reference machines count, evenly
// spread over all, so that the sums cost O(n) and not O(n^2).
inline constexpr size_t kReferencesMax = 64;

// The highest normal score that one of n machines can have.
inline double HighestScore(size_t n) { return n < 2 ? 0 : std::sqrt(static_cast<double>(n - 1)); }

// Returns for each machine the mean distance from the references. A distance is the root of the
// mean square over the rows of the embedding.
std::vector<double> MeanDistances(const Embedded& embedded, size_t num_machines);

// Returns for each machine the Mahalanobis distance from the mean of all machines.
std::vector<double> MahalanobisDistances(const Embedded& embedded, size_t num_machines);

// Returns how many standard deviations each distance is above their mean; 0 if all are equal.
std::vector<double> NormalScores(absl::Span<const double> distances);

}  // namespace megascale::minder
