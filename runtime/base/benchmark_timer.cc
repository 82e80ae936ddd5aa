#include "runtime/base/benchmark_timer.h"

#include <algorithm>
#include <chrono>

namespace megascale::base {

double LeastSeconds(const Tries& tries, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  call();
  double best = std::numeric_limits<double>::infinity();
  const Clock::time_point start = Clock::now();
  Clock::time_point before = start;
  for (int64_t i = 1; i <= tries.most; ++i) {
    call();
    const Clock::time_point after = Clock::now();
    best = std::min(best, std::chrono::duration<double>(after - before).count());
    before = after;
    if (i >= tries.least && std::chrono::duration<double>(after - start).count() > tries.seconds) {
      break;
    }
  }
  return best;
}

}  // namespace megascale::base
