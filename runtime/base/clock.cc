#include "runtime/base/clock.h"

#include <algorithm>
#include <ctime>

#include "absl/time/clock.h"

namespace megascale::base {
namespace {

class MachineClock : public Clock {
 public:
  absl::Duration Monotonic() const override {
    timespec now;
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return absl::DurationFromTimespec(now);
  }
  absl::Time Wall() const override { return absl::Now(); }
};

}  // namespace

int PollMilliseconds(absl::Duration wait) {
  const absl::Duration turn = std::clamp(wait, absl::ZeroDuration(), absl::Minutes(1));
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(turn, absl::Milliseconds(1))));
}

const Clock& RealClock() {
  static const MachineClock clock;
  return clock;
}

}  // namespace megascale::base
