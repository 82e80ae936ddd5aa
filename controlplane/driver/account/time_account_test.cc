#include "controlplane/driver/account/time_account.h"

#include <gtest/gtest.h>

#include <random>

namespace megascale::driver {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kStart = 1'700'000'000 * kSecond;

int64_t At(double seconds) { return kStart + static_cast<int64_t>(seconds * kSecond); }

int64_t SumOfParts(const TimeAccount& account) {
  return account.kept_nanos() + account.queue_nanos() + account.start_nanos() +
         account.load_nanos() + account.checkpoint_nanos() + account.detection_nanos() +
         account.decision_nanos() + account.recomputation_nanos() + account.degraded_nanos() +
         account.evaluation_nanos();
}

class TimeAccountTest : public ::testing::Test {
 protected:
  void SetUp() override { OpenBook(kStart, &book_); }

  void Enter(TimeBook::Phase phase, double at, bool has_failed = false) {
    EnterPhase({phase, has_failed, At(at)}, &book_);
  }

  struct Steps {
    int64_t newest = 0;
    int64_t count = 0;
    double seconds_each = 1;
    double checkpoint_seconds = 0;
    double evaluation_seconds = 0;
  };
  void Take(const Steps& steps, double at) {
    v1::StepsTaken taken;
    taken.set_step(steps.newest);
    taken.set_num_steps(steps.count);
    taken.set_step_nanos(static_cast<int64_t>(steps.seconds_each * kSecond) * steps.count);
    taken.set_checkpoint_nanos(static_cast<int64_t>(steps.checkpoint_seconds * kSecond));
    taken.set_evaluation_nanos(static_cast<int64_t>(steps.evaluation_seconds * kSecond));
    taken.set_taken_unix_nanos(At(at));
    CountSteps(taken, &book_);
  }

  TimeAccount Now(double at) const { return AccountAt(book_, At(at)); }

  TimeBook book_;
};

TEST_F(TimeAccountTest, EachPartGetsItsTimeInALifeWithOneFailure) {
  Enter(TimeBook::PHASE_START, 5);
  Enter(TimeBook::PHASE_LOAD, 7);
  Enter(TimeBook::PHASE_TRAIN, 10);
  Take({.newest = 50, .count = 50, .checkpoint_seconds = 3}, 63);
  Enter(TimeBook::PHASE_DECIDE, 70, true);  // 1 s of the unfinished step, then 6 s of silence
  Enter(TimeBook::PHASE_QUEUE, 72);
  Enter(TimeBook::PHASE_START, 73);
  RollBack(40, &book_);
  Enter(TimeBook::PHASE_TRAIN, 74);
  Take({.newest = 60, .count = 20, .evaluation_seconds = 4}, 98);
  Enter(TimeBook::PHASE_STORE, 98.5);
  Enter(TimeBook::PHASE_ENDED, 100);
  const TimeAccount account = Now(1000);
  EXPECT_EQ(account.queue_nanos(), 6 * kSecond);
  EXPECT_EQ(account.start_nanos(), 3 * kSecond);
  EXPECT_EQ(account.load_nanos(), 3 * kSecond);
  EXPECT_EQ(account.checkpoint_nanos(), 5 * kSecond);
  EXPECT_EQ(account.detection_nanos(), 6 * kSecond);
  EXPECT_EQ(account.decision_nanos(), 2 * kSecond);
  EXPECT_EQ(account.recomputation_nanos(), 11 * kSecond);  // ten steps, and the unfinished one
  EXPECT_EQ(account.kept_nanos(), 60 * kSecond);
  EXPECT_EQ(account.evaluation_nanos(), 4 * kSecond);
  EXPECT_EQ(account.wall_nanos(), 100 * kSecond);
  EXPECT_EQ(SumOfParts(account), account.wall_nanos());
}

TEST_F(TimeAccountTest, TimeBeyondTheUsualStepIsDegraded) {
  Enter(TimeBook::PHASE_TRAIN, 0);
  Take({.newest = 20, .count = 20, .seconds_each = 1}, 20);
  Take({.newest = 40, .count = 20, .seconds_each = 2}, 60);
  EXPECT_EQ(Now(60).degraded_nanos(), 20 * kSecond);
  EXPECT_EQ(Now(60).kept_nanos(), 40 * kSecond);
  Take({.newest = 60, .count = 20, .seconds_each = 1.05}, 81);  // within the tolerance
  EXPECT_EQ(Now(81).degraded_nanos(), 20 * kSecond);
}

TEST_F(TimeAccountTest, AFewFastStepsDoNotChangeWhatIsUsual) {
  Enter(TimeBook::PHASE_TRAIN, 0);
  Take({.newest = 20, .count = 20, .seconds_each = 1}, 20);
  Take({.newest = 21, .count = 1, .seconds_each = 0.1}, 20.1);
  Take({.newest = 41, .count = 20, .seconds_each = 1}, 40.1);
  EXPECT_EQ(Now(40.1).degraded_nanos(), 0);
}

TEST_F(TimeAccountTest, AJobThatStandsStillShowsDetectionAtOnce) {
  Enter(TimeBook::PHASE_TRAIN, 0);
  Take({.newest = 20, .count = 20, .seconds_each = 1}, 20);
  EXPECT_EQ(Now(20.5).kept_nanos(), At(20.5) - kStart);
  EXPECT_EQ(Now(51).detection_nanos(), 30 * kSecond);
  Take({.newest = 21, .count = 1, .seconds_each = 1}, 51);  // it was slow, not dead
  EXPECT_EQ(Now(51).detection_nanos(), 0);
}

TEST_F(TimeAccountTest, AHangBeforeTheFirstStepIsDetection) {
  Enter(TimeBook::PHASE_TRAIN, 0);
  Enter(TimeBook::PHASE_DECIDE, 60, true);
  EXPECT_EQ(Now(60).detection_nanos(), 60 * kSecond);
}

TEST_F(TimeAccountTest, ARollbackBehindAllMarksTakesBackTheirTimeToo) {
  Enter(TimeBook::PHASE_TRAIN, 0);
  for (int i = 1; i <= 20; ++i) {
    Take({.newest = i * 60, .count = 60, .seconds_each = 1}, i * 60);
  }
  Enter(TimeBook::PHASE_DECIDE, 1200, true);
  RollBack(300, &book_);
  EXPECT_EQ(Now(1200).kept_nanos(), 300 * kSecond);
  EXPECT_EQ(Now(1200).recomputation_nanos(), 900 * kSecond);
  for (const v1::TimeMark& mark : book_.marks()) {
    EXPECT_LE(mark.account().kept_nanos(), 300 * kSecond);
    EXPECT_LE(mark.kept_step(), 300);
    EXPECT_EQ(SumOfParts(mark.account()), mark.account().wall_nanos());
  }
}

TEST_F(TimeAccountTest, TheLastHourLeavesOutWhatWasBefore) {
  Enter(TimeBook::PHASE_TRAIN, 1800);  // half an hour in the queue
  for (int i = 1; i <= 90; ++i) {
    Take({.newest = i * 60, .count = 60, .seconds_each = 1}, 1800 + i * 60);
  }
  const TimeAccount hour = LastHourAt(book_, At(7200));
  EXPECT_EQ(hour.wall_nanos(), 3600 * kSecond);
  EXPECT_EQ(hour.kept_nanos(), 3600 * kSecond);
  EXPECT_EQ(hour.queue_nanos(), 0);
  EXPECT_EQ(Now(7200).queue_nanos(), 1800 * kSecond);
}

TEST_F(TimeAccountTest, AMarkInTheMiddleOfAPhaseIsInterpolated) {
  Enter(TimeBook::PHASE_START, 4000);
  EXPECT_EQ(LastHourAt(book_, At(5400)).queue_nanos(), 2200 * kSecond);
  EXPECT_EQ(LastHourAt(book_, At(5400)).start_nanos(), 1400 * kSecond);
}

TEST_F(TimeAccountTest, AClockThatGoesBackwardsAddsNothing) {
  Enter(TimeBook::PHASE_START, 10);
  Enter(TimeBook::PHASE_LOAD, 4);
  Enter(TimeBook::PHASE_TRAIN, 12);
  EXPECT_EQ(Now(12).wall_nanos(), 12 * kSecond);
  EXPECT_EQ(Now(3).wall_nanos(), 12 * kSecond);
}

TEST_F(TimeAccountTest, PartsAddUpWhateverHappens) {
  std::mt19937_64 random(7);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  int64_t now = 0;
  for (int i = 0; i < 5000; ++i) {
    now += below(4) == 0 ? below(200) : below(3);
    const int64_t step = book_.kept_step() + below(50);
    switch (below(3)) {
      case 0:
        Take({.newest = step, .count = 1 + below(30), .seconds_each = 0.1 * below(30)},
             static_cast<double>(now));
        break;
      case 1:
        Enter(static_cast<TimeBook::Phase>(1 + below(6)), static_cast<double>(now), below(2) == 0);
        break;
      default:
        RollBack(below(book_.kept_step() + 2), &book_);
    }
    const int64_t wall = At(static_cast<double>(now)) - kStart;
    ASSERT_EQ(Now(static_cast<double>(now)).wall_nanos(), wall);
    ASSERT_EQ(SumOfParts(Now(static_cast<double>(now))), wall);
    const TimeAccount hour = LastHourAt(book_, At(static_cast<double>(now)));
    ASSERT_EQ(SumOfParts(hour), hour.wall_nanos());
    ASSERT_NEAR(static_cast<double>(hour.wall_nanos()),
                static_cast<double>(std::min(wall, 3600 * kSecond)), 100);
    ASSERT_LE(book_.marks_size(), kTimeMarksMax);
  }
}

}  // namespace
}  // namespace megascale::driver
