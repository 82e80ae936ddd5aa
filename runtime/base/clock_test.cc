#include "runtime/base/clock.h"

#include <gtest/gtest.h>

#include <ctime>

namespace megascale::base {
namespace {

absl::Duration Read(clockid_t id) {
  timespec now;
  ::clock_gettime(id, &now);
  return absl::DurationFromTimespec(now);
}

// CLOCK_BOOTTIME continues while a machine is suspended: every process on it would look hung.
TEST(ClockTest, MonotonicTimeStandsStillWhileAMachineIsSuspended) {
  const absl::Duration before = Read(CLOCK_MONOTONIC);
  const absl::Duration read = RealClock().Monotonic();
  EXPECT_LE(before, read);
  EXPECT_LE(read, Read(CLOCK_MONOTONIC));
}

TEST(ClockTest, StepsOfTheWallClockMoveNoMonotonicTime) {
  FakeClock clock;
  const absl::Duration monotonic = clock.Monotonic();
  const absl::Time wall = clock.Wall();
  clock.StepWall(-absl::Hours(3));
  EXPECT_EQ(clock.Monotonic(), monotonic);
  EXPECT_EQ(clock.Wall(), wall - absl::Hours(3));
}

}  // namespace
}  // namespace megascale::base
