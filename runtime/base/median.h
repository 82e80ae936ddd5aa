// The median of a few numbers. Pure; threads: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace megascale::base {

// Returns the middle value, which is always an element of `values`: of an even number of values,
// the greater of the middle two. 0: there are no values.
inline double UpperMedian(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace megascale::base
