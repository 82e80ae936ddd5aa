// The median of a few numbers. Pure; threads: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace megascale::base {

// Returns the middle one of the values, which one of them really is: of an even number the greater
// of the two in the middle. 0: there are no values.
inline double UpperMedian(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace megascale::base
