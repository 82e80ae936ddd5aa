#include "controlplane/driver/storage/log_clock.h"

#include <gtest/gtest.h>

#include "proto/control.pb.h"

namespace megascale::driver {
namespace {

DriverState StateAt(absl::Time newest, absl::Duration ahead = absl::ZeroDuration()) {
  DriverState state;
  state.set_newest_unix_nanos(absl::ToUnixNanos(newest));
  state.set_clock_ahead_seconds(absl::ToInt64Seconds(ahead));
  return state;
}

TEST(LogClockTest, AStepOfTheWallClockChangesNoDuration) {
  base::FakeClock clock;
  const LogClock log(&clock, {});
  const absl::Time begin = log.Now();
  EXPECT_EQ(begin, clock.Wall());
  for (const absl::Duration step : {absl::Hours(1), -absl::Hours(24), absl::Hours(24 * 365)}) {
    const absl::Time before = log.Now();
    clock.StepWall(step);
    clock.Advance(absl::Seconds(3));
    EXPECT_EQ(log.Now() - before, absl::Seconds(3));
    EXPECT_EQ(log.Now() + log.Ahead(), clock.Wall()) << "moments follow the wall clock";
  }
}

TEST(LogClockTest, SmallDifferencesAreNoStep) {
  base::FakeClock clock;
  const LogClock log(&clock, {});
  clock.StepWall(absl::Milliseconds(400));
  EXPECT_EQ(log.Ahead(), absl::ZeroDuration());
}

TEST(LogClockTest, ADriverThatStartsAgainContinuesTheTimeOfItsLog) {
  const absl::Time newest = absl::FromUnixSeconds(1'000'000);
  EXPECT_EQ(LogTimeAtStart(StateAt(newest), newest + absl::Minutes(5)), newest + absl::Minutes(5));
  // The wall clock was stepped by a day before: that day did not pass.
  const absl::Duration day = absl::Hours(24);
  EXPECT_EQ(LogTimeAtStart(StateAt(newest, day), newest + day + absl::Minutes(5)),
            newest + absl::Minutes(5));
  EXPECT_EQ(LogTimeAtStart(DriverState(), newest), newest) << "a new log";
}

TEST(LogClockTest, AnAbsenceIsBoundedWhateverTheWallClockSays) {
  const absl::Time newest = absl::FromUnixSeconds(1'000'000);
  EXPECT_EQ(LogTimeAtStart(StateAt(newest), newest - absl::Hours(1)), newest) << "set back";
  EXPECT_EQ(LogTimeAtStart(StateAt(newest), newest + absl::Hours(24 * 365 * 70)),
            newest + kAbsenceMax);
}

TEST(LogClockTest, EveryMomentInAnAnswerIsMoved) {
  megascale::control::v1::Job job;
  job.mutable_submitted_at()->set_seconds(100);
  job.mutable_evidence()->mutable_ended_at()->set_seconds(200);
  job.mutable_suspicion()->mutable_since()->set_seconds(150);
  MoveTimes(absl::Hours(1), &job);
  EXPECT_EQ(job.submitted_at().seconds(), 3700);
  EXPECT_EQ(job.evidence().ended_at().seconds(), 3800);
  EXPECT_EQ(job.suspicion().since().seconds(), 3750);
  EXPECT_FALSE(job.has_started_at()) << "what is unset stays unset";
}

}  // namespace
}  // namespace megascale::driver
