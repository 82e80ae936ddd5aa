#include "runtime/telemetry/rank_work.h"

#include <gtest/gtest.h>

namespace megascale::telemetry {
namespace {

v1::StepRange RangeOf(int64_t first, int64_t last) {
  v1::StepRange range;
  range.set_first_step(first);
  range.set_last_step(last);
  return range;
}

class RankWorkTest : public testing::Test {
 protected:
  // A second of rank 3, at whose end `step` is its newest step.
  void Second(RankWorkSum* sum, int64_t step, double compute_share, double wait_share = 0) {
    seconds_ += 1;
    v1::MachineSample sample;
    sample.set_monotonic_nanos(seconds_ * 1'000'000'000);
    v1::ProcessSample* other = sample.add_ranks();
    other->set_job_id("another");
    other->set_rank(3);
    other->set_step(1000 - step);
    other->set_compute_share(1);
    v1::ProcessSample* rank = sample.add_ranks();
    rank->set_job_id("j");
    rank->set_rank(3);
    rank->set_step(step);
    rank->set_compute_share(compute_share);
    rank->set_wait_share(wait_share);
    sum->Add(sample);
  }

  int64_t seconds_ = 50;
};

// Two steps a second until step 20, then one in two seconds.
TEST_F(RankWorkTest, SumsUpTheTimeOfEachRange) {
  RankWorkSum sum("j", {RangeOf(5, 20), RangeOf(21, 25)});
  for (int64_t step = 2; step <= 20; step += 2) Second(&sum, step, 0.6, 0.3);
  for (int64_t step = 21; step <= 30; ++step) {
    Second(&sum, step - 1, 1);
    Second(&sum, step, 0.5, 0.5);
  }
  const std::vector<v1::RankWork> ranks = sum.Ranks();
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_EQ(ranks[0].rank(), 3);
  ASSERT_EQ(ranks[0].ranges_size(), 2);
  const v1::StepsWork& before = ranks[0].ranges(0);
  EXPECT_EQ(before.num_steps(), 16) << "steps 5 to 20";
  EXPECT_DOUBLE_EQ(before.seconds(), 8);
  EXPECT_DOUBLE_EQ(before.compute_seconds(), 8 * 0.6);
  EXPECT_DOUBLE_EQ(before.wait_seconds(), 8 * 0.3);
  const v1::StepsWork& now = ranks[0].ranges(1);
  EXPECT_EQ(now.num_steps(), 5);
  EXPECT_DOUBLE_EQ(now.seconds(), 10);
  EXPECT_DOUBLE_EQ(now.compute_seconds(), 7.5);
}

// A step that is seen in part would look short.
TEST_F(RankWorkTest, StepsWhoseBeginningOrEndIsNotSeenAreLeftOut) {
  RankWorkSum sum("j", {RangeOf(1, 100)});
  for (int i = 0; i < 3; ++i) Second(&sum, 7, 1);
  Second(&sum, 8, 1);
  for (int i = 0; i < 4; ++i) Second(&sum, 8, 1);
  Second(&sum, 9, 1);
  for (int i = 0; i < 4; ++i) Second(&sum, 9, 1);
  const v1::StepsWork work = sum.Ranks().at(0).ranges(0);
  EXPECT_EQ(work.num_steps(), 1) << "step 9";
  EXPECT_DOUBLE_EQ(work.seconds(), 5);
}

TEST_F(RankWorkTest, AnAttemptThatGoesBackBeginsAnew) {
  RankWorkSum sum("j", {RangeOf(1, 100)});
  for (int64_t step = 10; step < 20; ++step) Second(&sum, step, 1);
  for (int64_t step = 15; step < 20; ++step) Second(&sum, step, 0.5);
  const v1::StepsWork work = sum.Ranks().at(0).ranges(0);
  EXPECT_EQ(work.num_steps(), 3) << "steps 17 to 19";
  EXPECT_DOUBLE_EQ(work.compute_seconds(), 1.5);
}

TEST_F(RankWorkTest, ARangeThatWasNotRunHasNoSteps) {
  RankWorkSum sum("j",
                  {RangeOf(50, 60), RangeOf(1, 2), RangeOf(9, 5), RangeOf(1, 9), RangeOf(1, 9)});
  for (int64_t step = 10; step < 20; ++step) Second(&sum, step, 1);
  const v1::RankWork work = sum.Ranks().at(0);
  EXPECT_EQ(work.ranges_size(), 4) << "the fifth is one too many";
  for (const v1::StepsWork& range : work.ranges()) EXPECT_EQ(range.num_steps(), 0);
  EXPECT_TRUE(RankWorkSum("none", {}).Ranks().empty());
}

}  // namespace
}  // namespace megascale::telemetry
