#include "runtime/optim/schedule.h"

#include <gtest/gtest.h>

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

TEST(LearningRate, TakesDefaultsForZeros) {
  const job::v1::OptimizerSpec spec;
  EXPECT_DOUBLE_EQ(LearningRate(spec, 100, 0), 3e-4);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 100, 100), 3e-5);
}

TEST(LearningRate, StaysFiniteWhereTheWarmUpFillsTheJob) {
  EXPECT_DOUBLE_EQ(LearningRate(Spec(), 10, 10), 0.01);
  EXPECT_DOUBLE_EQ(LearningRate(Spec(), 4, 4), 0.004);
}

}  // namespace
}  // namespace megascale::optim
