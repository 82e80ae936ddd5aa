// The series of a metric on one grid of seconds, so that samples that machines took at different
// times can be compared. Pure. Source: Deng et al., NSDI '25 (Minder), section 4.1.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace megascale::minder {

struct Sample {
  double seconds = 0;  // time, on a clock that all machines share
  double value = 0;
};

// The values of the metric that are scaled to 0 and to 1.
struct Limits {
  double lower = 0;
  double upper = 1;
};

// A metric of all machines, on one grid of seconds, from 0 to 1.
struct MetricSeries {
  std::string name;
  std::vector<std::vector<float>> machines;  // all of equal length
};

// Returns `limits` with the upper limit raised to the largest value of any machine. It is for
// metrics such as bytes per second, which have no upper limit of their own. Values that are not
// finite are left out.
Limits Raised(Limits limits, absl::Span<const std::vector<Sample>> machines);

// Returns a value for each of `num_seconds` seconds from `begin` on, from 0 to 1. A second without
// a sample gets the value of the nearest sample; of two equally near samples, the earlier. Values
// beyond the limits count as the limit; values and times that are not finite are left out. Samples
// may be in any order, because clocks jump. Without any sample: all 0. Requires: lower < upper.
std::vector<float> Align(absl::Span<const Sample> samples, const Limits& limits, double begin,
                         int num_seconds);

}  // namespace megascale::minder
