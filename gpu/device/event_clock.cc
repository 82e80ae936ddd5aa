#include "gpu/device/event_clock.h"

#include <algorithm>
#include <utility>

namespace megascale::gpu {

absl::Duration EventClock::At(absl::Duration elapsed, absl::Duration seen) {
  device_ += elapsed;
  if (seen - window_begin_ >= kWindow) {
    window_begin_ = seen;
    previous_least_ = std::exchange(least_, absl::InfiniteDuration());
  }
  least_ = std::min(least_, seen - device_);
  last_ = std::max(last_, std::min(seen, device_ + std::min(least_, previous_least_)));
  return last_;
}

}  // namespace megascale::gpu
