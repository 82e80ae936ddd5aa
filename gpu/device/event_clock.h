// Converts the times of CUDA events to the host's monotonic clock. CUDA tells how much time passed
// on the device between two events, to about half a microsecond. The host learns that an event has
// happened only tens of microseconds later, or more.
//
//   clock.At(elapsed_since_the_event_before, base::RealClock().Monotonic());
//
// The host never sees an event before it happens, so the least difference that was seen between the
// two clocks is nearest to the true difference. Only the last kWindow to 2 kWindow count for it,
// because the clocks drift apart by microseconds each second.
#pragma once

#include "absl/time/time.h"

namespace megascale::gpu {

// Threads: one at a time.
class EventClock {
 public:
  static constexpr absl::Duration kWindow = absl::Seconds(5);

  // Returns when an event happened. `elapsed`: time on the device since the event of the previous
  // call (zero in the first call). `seen`: when the host saw that the event had happened. The
  // results never decrease, and are never after `seen`.
  absl::Duration At(absl::Duration elapsed, absl::Duration seen);

  // Forgets the event of the previous call. For the case that the time from it to the next event is
  // unknown. The next call is like a first call, but its result is not before the results of
  // earlier calls.
  void Restart() { least_ = previous_least_ = absl::InfiniteDuration(); }

 private:
  absl::Duration device_ = absl::ZeroDuration();  // since the first event
  absl::Duration window_begin_ = -absl::InfiniteDuration();
  // The least difference, host minus device, in this window and in the previous window.
  absl::Duration least_ = absl::InfiniteDuration();
  absl::Duration previous_least_ = absl::InfiniteDuration();
  absl::Duration last_ = -absl::InfiniteDuration();  // result
};

}  // namespace megascale::gpu
