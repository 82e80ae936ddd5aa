// The time of the driver's log: what events are stamped with, and so all that the state machine
// measures (time accounts, ages of quarantines, waits in the queue). It begins with the wall clock
// and then runs like a monotonic clock, also while the machine is suspended. So a step of the wall
// clock changes no duration. The wall clock only names moments: who shows one adds `Ahead`.
//
// A driver that starts continues the time of its log. How long no driver ran, only the wall clock
// can tell: an absence counts as at least 0 and at most kAbsenceMax. A wall clock that was stepped
// meanwhile makes the absence seem longer or shorter, within these bounds.
// Threads: any, the constructor aside.
#pragma once

#include <google/protobuf/message.h>

#include "absl/time/time.h"
#include "controlplane/driver/core/driver_state.h"
#include "runtime/base/clock.h"

namespace megascale::driver {

inline constexpr absl::Duration kAbsenceMax = absl::Hours(30 * 24);

// Returns the time of the log at which a driver with this state starts. `wall`: the wall clock now.
absl::Time LogTimeAtStart(const DriverState& state, absl::Time wall);

class LogClock {
 public:
  // Continues the time of the log with this state. `clock` outlives the object.
  LogClock(const base::Clock* clock, const DriverState& state);

  absl::Time Now() const { return begin_ + (clock_.SinceBoot() - began_); }
  // Returns the wall clock minus Now, in whole seconds; 0 unless the wall clock was stepped.
  absl::Duration Ahead() const;

 private:
  const base::Clock& clock_;
  const absl::Duration began_;
  const absl::Time begin_;
};

// Adds `by` to every Timestamp in the message.
void MoveTimes(absl::Duration by, google::protobuf::Message* message);

}  // namespace megascale::driver
