#include "runtime/base/clock.h"

#include <algorithm>
#include <ctime>

#include "absl/time/clock.h"

namespace megascale::base {
namespace {

class MachineClock : public Clock {
 public:
  absl::Duration Monotonic() const override { return Read(CLOCK_MONOTONIC); }
  absl::Duration SinceBoot() const override { return Read(CLOCK_BOOTTIME); }
  absl::Time Wall() const override { return absl::Now(); }

 private:
  static absl::Duration Read(clockid_t clock) {
    timespec now;
    ::clock_gettime(clock, &now);
    return absl::DurationFromTimespec(now);
  }
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
