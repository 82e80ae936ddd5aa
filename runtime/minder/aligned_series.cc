#include "runtime/minder/aligned_series.h"

#include <algorithm>
#include <cmath>

namespace megascale::minder {

Limits Raised(Limits limits, absl::Span<const std::vector<Sample>> machines) {
  for (const std::vector<Sample>& samples : machines) {
    for (const Sample& sample : samples) {
      if (std::isfinite(sample.value)) limits.upper = std::max(limits.upper, sample.value);
    }
  }
  return limits;
}

std::vector<float> Align(absl::Span<const Sample> samples, const Limits& limits, double begin,
                         int num_seconds) {
  std::vector<Sample> known;
  known.reserve(samples.size());
  for (const Sample& sample : samples) {
    if (std::isfinite(sample.value) && std::isfinite(sample.seconds)) known.push_back(sample);
  }
  std::stable_sort(known.begin(), known.end(),
                   [](const Sample& a, const Sample& b) { return a.seconds < b.seconds; });
  std::vector<float> aligned(static_cast<size_t>(std::max(0, num_seconds)), 0.0f);
  if (known.empty()) return aligned;
  size_t nearest = 0;
  for (size_t second = 0; second < aligned.size(); ++second) {
    const double at = begin + static_cast<double>(second);
    const auto distance = [&](size_t i) { return std::abs(known[i].seconds - at); };
    while (nearest + 1 < known.size() &&
           (known[nearest + 1].seconds <= at || distance(nearest + 1) < distance(nearest))) {
      ++nearest;
    }
    const double share = (known[nearest].value - limits.lower) / (limits.upper - limits.lower);
    aligned[second] = static_cast<float>(std::clamp(share, 0.0, 1.0));
  }
  return aligned;
}

}  // namespace megascale::minder
