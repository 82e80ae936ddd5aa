#include "runtime/base/clock.h"

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

const Clock& RealClock() {
  static const MachineClock clock;
  return clock;
}

}  // namespace megascale::base
