// How long a call takes when nobody disturbs it: what benchmarks and ceilings are made of.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

namespace megascale::base {

// When to stop trying.
struct Tries {
  double seconds = 0.1;  // of calls, but
  int64_t least = 1;     // calls at least, and
  int64_t most = std::numeric_limits<int64_t>::max();
};

// The least time of a call, in seconds, after one that does not count.
double LeastSeconds(const Tries& tries, const std::function<void()>& call);

}  // namespace megascale::base
