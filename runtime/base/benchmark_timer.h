// Measures the undisturbed duration of a call, for benchmarks and ceilings.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

namespace megascale::base {

// When to stop measuring.
struct Tries {
  double seconds = 0.1;  // total seconds of calls
  int64_t least = 1;     // fewest calls, even if they take longer than `seconds`
  int64_t most = std::numeric_limits<int64_t>::max();
};

// Returns the seconds of the fastest call, after a first call that does not count.
double LeastSeconds(const Tries& tries, const std::function<void()>& call);

}  // namespace megascale::base
