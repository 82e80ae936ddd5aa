#include "runtime/optim/schedule.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "proto/job.pb.h"

namespace megascale::optim {
namespace {

job::v1::OptimizerSpec Spec() {
  job::v1::OptimizerSpec spec;
  spec.set_lr(0.01);
  spec.set_min_lr(0.002);
  spec.set_warmup_steps(10);
  return spec;
}

TEST(LearningRate, RisesLinearlyToThePeak) {
  EXPECT_EQ(LearningRate(Spec(), 110, 0), 0.0);
  EXPECT_DOUBLE_EQ(LearningRate(Spec(), 110, 1), 0.001);
  EXPECT_DOUBLE_EQ(LearningRate(Spec(), 110, 5), 0.005);
  EXPECT_DOUBLE_EQ(LearningRate(Spec(), 110, 10), 0.01);
}

TEST(LearningRate, FallsByACosineToTheLowestAtTheLastStep) {
  EXPECT_DOUBLE_EQ(LearningRate(Spec(), 110, 60), 0.006);
  EXPECT_GT(LearningRate(Spec(), 110, 35), 0.008);
  EXPECT_DOUBLE_EQ(LearningRate(Spec(), 110, 110), 0.002);
  EXPECT_EQ(LearningRate(Spec(), 110, 111), 0.002);
  for (int step = 11; step <= 110; ++step) {
    EXPECT_LT(LearningRate(Spec(), 110, step), LearningRate(Spec(), 110, step - 1)) << step;
  }
}

// Values of the published formulas, computed in Python's doubles, 7, 50 and 93 steps behind the
// warm-up of 10 of 110 steps.
TEST(LearningRate, IsThatOfTheFormulaUnderEverySchedule) {
  struct Case {
    job::v1::Schedule schedule;
    std::array<double, 3> rates;
  };
  for (const Case& one :
       {Case{job::v1::SCHEDULE_COSINE, {0.00990366704775499, 0.006, 0.0020963329522450105}},
        Case{job::v1::SCHEDULE_CONSTANT, {0.01, 0.01, 0.01}},
        Case{job::v1::SCHEDULE_LINEAR, {0.00944, 0.006, 0.00256}}}) {
    job::v1::OptimizerSpec spec = Spec();
    spec.set_schedule(one.schedule);
    const int64_t steps[] = {17, 60, 103};
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(LearningRate(spec, 110, steps[i]), one.rates[i], 1e-12 * one.rates[i]);
    }
    EXPECT_DOUBLE_EQ(LearningRate(spec, 110, 5), 0.005);
  }
}

// The formulas of Hu et al. and Hagele et al.; decay_steps 20 of 110.
TEST(LearningRate, StaysAndThenDecaysInTheLastSteps) {
  const auto rate = [](job::v1::Decay decay, int64_t step) {
    job::v1::OptimizerSpec spec = Spec();
    spec.set_schedule(job::v1::SCHEDULE_WSD);
    spec.set_decay(decay);
    spec.set_decay_steps(20);
    return LearningRate(spec, 110, step);
  };
  for (const auto decay : {job::v1::DECAY_UNSPECIFIED, job::v1::DECAY_LINEAR, job::v1::DECAY_COSINE,
                           job::v1::DECAY_ONE_MINUS_SQRT}) {
    EXPECT_DOUBLE_EQ(rate(decay, 4), 0.004);
    for (const int64_t step : {10, 50, 90}) EXPECT_DOUBLE_EQ(rate(decay, step), 0.01) << step;
    EXPECT_DOUBLE_EQ(rate(decay, 110), 0.002);
    EXPECT_EQ(rate(decay, 111), 0.002);
  }
  EXPECT_NEAR(rate(job::v1::DECAY_LINEAR, 95), 0.008, 1e-14);
  EXPECT_NEAR(rate(job::v1::DECAY_COSINE, 95), 0.008828427124746190, 1e-14);
  EXPECT_NEAR(rate(job::v1::DECAY_ONE_MINUS_SQRT, 95), 0.006, 1e-14);
  EXPECT_NEAR(rate(job::v1::DECAY_ONE_MINUS_SQRT, 100), 0.002 + 0.008 * (1 - 0.7071067811865476),
              1e-14);
}

TEST(LearningRate, DecaysInATenthOfTheStepsByDefault) {
  job::v1::OptimizerSpec spec = Spec();
  spec.set_schedule(job::v1::SCHEDULE_WSD);
  EXPECT_EQ(DecaySteps(spec, 110), 11);
  EXPECT_EQ(DecaySteps(spec, 4), 1);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 110, 99), 0.01);
  EXPECT_LT(LearningRate(spec, 110, 100), 0.01);
}

TEST(LearningRate, TakesDefaultsForZeros) {
  const job::v1::OptimizerSpec spec;
  EXPECT_DOUBLE_EQ(LearningRate(spec, 100, 0), 3e-4);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 100, 100), 3e-5);
}

TEST(LearningRate, StaysFiniteWhereTheWarmUpFillsTheJob) {
  EXPECT_DOUBLE_EQ(LearningRate(Spec(), 10, 10), 0.01);
  EXPECT_DOUBLE_EQ(LearningRate(Spec(), 4, 4), 0.004);
}

TEST(FirstRateChange, IsThatOfTheNextStepWhereACosineBecomesLonger) {
  const job::v1::OptimizerSpec spec = Spec();
  const auto change = FirstRateChange({&spec, 110}, {&spec, 210}, 60);
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->step, 61);
  EXPECT_EQ(change->was, LearningRate(spec, 110, 61));
  EXPECT_EQ(change->is, LearningRate(spec, 210, 61));
  const auto after_the_end = FirstRateChange({&spec, 110}, {&spec, 210}, 110);
  ASSERT_TRUE(after_the_end.has_value());
  EXPECT_EQ(after_the_end->step, 111);
  EXPECT_EQ(after_the_end->was, 0.002);
}

TEST(FirstRateChange, IsALaterOneWhereTheWarmUpGoesOn) {
  const job::v1::OptimizerSpec spec = Spec();
  const auto change = FirstRateChange({&spec, 110}, {&spec, 90}, 3);
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->step, 11);
}

TEST(FirstRateChange, IsNoneWhereEveryStepThatIsLeftHasItsRate) {
  job::v1::OptimizerSpec spec = Spec();
  EXPECT_FALSE(FirstRateChange({&spec, 110}, {&spec, 110}, 0).has_value());
  EXPECT_FALSE(FirstRateChange({&spec, 110}, {&spec, 60}, 60).has_value()) << "no step is left";
  spec.set_min_lr(spec.lr());
  EXPECT_FALSE(FirstRateChange({&spec, 110}, {&spec, 1'000'000'007}, 60).has_value());
}

TEST(FirstRateChange, ComparesTheLastStepOfALongRest) {
  job::v1::OptimizerSpec was = Spec();
  was.set_min_lr(was.lr());
  const auto change = FirstRateChange({&was, 999'999'999}, {&was, 999'999'999}, 10);
  EXPECT_FALSE(change.has_value());
  job::v1::OptimizerSpec is = was;
  is.set_warmup_steps(1'000'000'000);
  ASSERT_TRUE(FirstRateChange({&was, 999'999'999}, {&is, 999'999'999}, 10).has_value());
}

}  // namespace
}  // namespace megascale::optim
