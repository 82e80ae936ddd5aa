// Time as a dependency. Decisions use monotonic time only; wall time is for people.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace megascale::base {

class Clock {
 public:
  virtual ~Clock() = default;
  // Returns the time since an arbitrary start. It never goes back, and is comparable between
  // processes of one machine.
  virtual absl::Duration Monotonic() const = 0;
  // As Monotonic, with the time in which the machine was suspended.
  virtual absl::Duration SinceBoot() const { return Monotonic(); }
  // Returns the wall time, which may jump.
  virtual absl::Time Wall() const = 0;
};

// The machine's clocks (CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_REALTIME). Lives for ever;
// stateless.
const Clock& RealClock();

// Returns `wait` as a timeout for poll(2): milliseconds, rounded up so that a last short wait does
// not spin; at least 0, at most a minute, even for infinite waits (the caller then polls again).
int PollMilliseconds(absl::Duration wait);

// A clock that moves only when it is told to.
class FakeClock : public Clock {
 public:
  absl::Duration Monotonic() const override { return monotonic_; }
  absl::Time Wall() const override { return absl::UnixEpoch() + monotonic_ + wall_offset_; }
  void Advance(absl::Duration by) { monotonic_ += by; }
  void StepWall(absl::Duration by) { wall_offset_ += by; }

 private:
  absl::Duration monotonic_ = absl::Seconds(1000);
  absl::Duration wall_offset_ = absl::ZeroDuration();
};

}  // namespace megascale::base
